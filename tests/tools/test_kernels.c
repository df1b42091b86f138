/* tests/tools/test_kernels.c: a library needs a source file; the kernels are linked into this one. See
 * tests/CMakeLists.txt. */
extern const int cr_test_kernels;
const int        cr_test_kernels = 1;
