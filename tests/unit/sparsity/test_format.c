/* tests/unit/sparsity/test_format.c: weight formats and their numbers. Stored kernel times name formats by number, so
 * the numbers must stay those that earlier versions wrote. */
#include "sparsity/format.h"
#include "tests/harness/test.h"

/* The numbers that files of versions 0.1 to 0.3 have. */
static const struct {
    enum cr_sparse_kernel kernel;
    int                   first, last;
} numbers[] = {{CR_SPARSE_ROWS, 0, 0},       {CR_SPARSE_DIRECT, 1, 14},    {CR_SPARSE_MMA_SP, 15, 38},
               {CR_SPARSE_TWO_FOUR, 48, 51}, {CR_SPARSE_WGMMA_SP, 52, 61}, {CR_SPARSE_BLOCK, 64, 76}};

static void numbers_are_those_of_files(void) {
    CHECK_INT((int)CR_COUNT(numbers), CR_SPARSE_KERNELS);
    for (size_t i = 0; i < CR_COUNT(numbers); i++) {
        CHECK_INT(cr_sparse_tiles(numbers[i].kernel), numbers[i].last - numbers[i].first + 1);
        for (int tile = 0; tile < cr_sparse_tiles(numbers[i].kernel); tile++)
            CHECK_INT(cr_sparse_format_number((struct cr_sparse_format){numbers[i].kernel, tile}),
                      numbers[i].first + tile);
    }
}

/* Every kernel's formats in a row, by increasing number. */
static void formats_are_listed_by_number(void) {
    int index = 0;
    for (size_t i = 0; i < CR_COUNT(numbers); i++)
        for (int number = numbers[i].first; number <= numbers[i].last; number++, index++) {
            const struct cr_sparse_format format = cr_sparse_format_at(index);
            CHECK(format.kernel == numbers[i].kernel && format.tile == number - numbers[i].first);
        }
    CHECK_INT(index, CR_SPARSE_FORMATS);
}

TESTS(CASE(numbers_are_those_of_files), CASE(formats_are_listed_by_number))
