/* cli/wheel_main.c: the file `cresnet` of a Python wheel. The program itself, main.c, is a part of libcresnet there. */
int cresnet_main(int argc, char **argv);

int main(int argc, char **argv) {
    return cresnet_main(argc, argv);
}
