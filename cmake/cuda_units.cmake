# cuda_units.cmake: for builds that only check that the GPU code compiles. .cu files are compiled together: two of the 2.5 seconds of a small
# one are headers, which are read by four programs. Names in the files of a unit differ, except THREADS, which the unit renames; where a new
# name makes two files clash, remove one of them here. Files that are not listed are compiled alone.

set(cuda_units
    "conv/cifar/cifar_conv_grad conv/int8/int8_conv_mma jpeg/samples"
    "conv/cifar/cifar_narrow_grad elementwise/squeeze_excite train/loss"
    "conv/cifar/cifar_conv elementwise/quantize sparse/mma_sp/mma_sp_plan conv/cifar/head/cifar_head conv/mma/stem_grad_mma"
    "conv/cifar/cifar_dgrad conv/mma/stem_mma sparse/mma_sp/mma_sp train/distill train/update_rules"
    "conv/mma/gram/point_gram_mma core/step_block elementwise/drop elementwise/space_to_depth norm/bn_grad norm/pool_bn
     sparse/direct/direct_wgrad sparse/two_four/two_four train/sgd"
    "conv/mma/point_grad_mma elementwise/pool_grad dense/dense elementwise/fake_quant elementwise/pool elementwise/subsample
     sparse/direct/direct_conv sparse/direct/gather sparse/wgmma_sp/wgmma_sp dense/dense_few conv/generic/conv conv/gram/gram_finalize"
    "conv/mma/point_mma collectives/reduce core/gather_pieces elementwise/channel_conv elementwise/normalize_any norm/bn norm/fold_bn
     sparse/direct/direct_plan sparse/mma_sp/mma_sp_fill train/init jpeg/huffman"
    "conv/gram/gram_wgrad elementwise/pointwise conv/gram/gram_grad core/delay elementwise/mix norm/bn_apply
     norm/bn_relu_grad norm/relu_grad sparse/direct/sell_conv sparse/wgmma_sp/wgmma_sp_pack"
    "conv/gram/gram train/muon jpeg/resize core/reference_work conv/int8/int8_stem_mma conv/cifar/cifar_dense"
    "conv/generic/group_conv conv/int8/int8_conv_plain core/fill_node conv/cifar/cifar_wgrads"
    "conv/pointwise/point_grad_sm90a sparse/two_four/two_four_sm90a conv/int8/int8_split_sm90a"
    "sparse/block/block_sparse_sm90a sparse/wgmma_sp/wgmma_sp_sm90a"
    "conv/stem/stem_sm90a conv/fused/split_conv_sm90a")

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
      file(STRINGS ${source} lines REGEX "[ (]THREADS *=")
      if(lines)
        string(MAKE_C_IDENTIFIER ${name} suffix)
        string(APPEND text "#define THREADS THREADS_${suffix}\n#include \"cuda/${name}.cu\"\n#undef THREADS\n")
      else()
        string(APPEND text "#include \"cuda/${name}.cu\"\n")
      endif()
      file(STRINGS ${source} lines REGEX "^#define ")
      string(REGEX MATCHALL "#define +[A-Za-z0-9_]+" lines "${lines}")
      string(REPLACE "#define" "\n#undef" lines "${lines}")
      string(REPLACE ";" "" lines "${lines}")
      string(APPEND text "${lines}\n")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    endforeach()
    list(REMOVE_DUPLICATES headers) # before the files, whose THREADS is not that of a header
    list(JOIN headers "\n" headers)
    set(path ${PROJECT_BINARY_DIR}/cuda_units/unit_${number})
    if(source MATCHES "_sm90a\\.cu$")
      string(APPEND path _sm90a)
    endif()
    string(APPEND path .cu)
    file(CONFIGURE OUTPUT ${path} CONTENT "${headers}\n${text}" @ONLY)
    list(APPEND list ${path})
    math(EXPR number "${number} + 1")
  endforeach()
  set(${sources} ${list} PARENT_SCOPE)
endfunction()
