# cuda_units.cmake: for builds that only check that the GPU code compiles. Small .cu files are compiled together: 2.5 of the 3 seconds of each
# are headers, which are read by four programs. Names in the files of a unit differ, except THREADS, which the unit renames; where a new name
# makes two files clash, remove one of them here. Files that are not listed are compiled alone.

set(cuda_units
    "norm/pool_bn train/loss_weighted train/init elementwise/drop"
    "elementwise/pool train/update_rules"
    "train/distill sparse/mma_sp/mma_sp sparse/two_four/two_four sparse/direct/direct_wgrad"
    "sparse/wgmma_sp/wgmma_sp_pack train/loss train/sgd sparse/direct/direct_plan sparse/wgmma_sp/wgmma_sp"
    "elementwise/quantize sparse/direct/direct_conv norm/bn_apply elementwise/normalize_any"
    "norm/bn_grad elementwise/fake_quant sparse/mma_sp/mma_sp_plan"
    "norm/relu_grad elementwise/squeeze_excite elementwise/space_to_depth sparse/direct/sell_conv sparse/mma_sp/mma_sp_fill"
    "norm/bn elementwise/blurpool collectives/reduce elementwise/mix dense/dense"
    "norm/bn_relu_grad elementwise/channel_conv core/gather_pieces core/step_block norm/fold_bn sparse/direct/gather core/delay")

# cuda_join_files(SOURCES): replaces the listed files in the list SOURCES by units, which include them.
function(cuda_join_files sources)
  set(list ${${sources}})
  set(number 0)
  foreach(unit ${cuda_units})
    separate_arguments(names UNIX_COMMAND "${unit}")
    set(headers)
    set(text)
    foreach(name ${names})
      set(source ${PROJECT_SOURCE_DIR}/cuda/${name}.cu)
      list(REMOVE_ITEM list ${source})
      file(STRINGS ${source} lines REGEX "^#include ")
      list(APPEND headers ${lines})
      file(STRINGS ${source} lines REGEX "THREADS *=")
      if(lines)
        string(MAKE_C_IDENTIFIER ${name} suffix)
        string(APPEND text "#define THREADS THREADS_${suffix}\n#include \"cuda/${name}.cu\"\n#undef THREADS\n")
      else()
        string(APPEND text "#include \"cuda/${name}.cu\"\n")
      endif()
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    endforeach()
    list(REMOVE_DUPLICATES headers) # before the files, whose THREADS is not that of a header
    list(JOIN headers "\n" headers)
    set(path ${PROJECT_BINARY_DIR}/cuda_units/unit_${number}.cu)
    file(CONFIGURE OUTPUT ${path} CONTENT "${headers}\n${text}" @ONLY)
    list(APPEND list ${path})
    math(EXPR number "${number} + 1")
  endforeach()
  set(${sources} ${list} PARENT_SCOPE)
endfunction()
