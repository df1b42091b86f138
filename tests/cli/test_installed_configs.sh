#!/usr/bin/env bash
# test_installed_configs.sh: commands find the configurations that are installed with the program by name, and `cresnet config` lists and copies
# them. The program and the configurations are copied to where an installation has them.
. "$(dirname "$0")/../harness/support.sh"
mkdir -p prefix/bin prefix/share/cresnet copies
cp "$bin" prefix/bin/cresnet
cp -r "$source_dir/configs" prefix/share/cresnet/
export PATH=$work/prefix/bin:$PATH
cd copies || exit 1

said=$(cresnet plan cifar10-resnet56.ini --json 2>&1); is "an installed configuration by name" $? 0
has "an installed configuration by name" "$said" "using the installed $work/prefix/share/cresnet/configs/cifar10-resnet56.ini"
ends "config: the list" 0 cresnet config
is "... has all" "$(cresnet config | wc -l)" "$(ls "$source_dir"/configs/*.ini | wc -l)"
has "... with a sentence of each" "$said" "resnet50.ini                  ResNet-50 (v1.5"
ends "config demo.ini" 0 cresnet config demo.ini
has "config demo.ini" "$said" "wrote demo.ini"
holds "config demo.ini" cmp demo.ini "$source_dir/configs/demo.ini"
ends "config demo.ini again" 2 cresnet config demo.ini
has "config demo.ini again" "$said" "demo.ini: exists here already and is not replaced"
ends "config configs/cifar10-resnet56-sparse.ini" 0 cresnet config configs/cifar10-resnet56-sparse.ini -q
is "... is quiet" "$said" ""
for file in cifar10-resnet56-sparse cifar10-resnet56 cifar10-resnet20; do holds "... with what it includes" cmp $file.ini "$source_dir/configs/$file.ini"; done
echo "; mine" >>cifar10-resnet20.ini && rm cifar10-resnet56.ini && cp cifar10-resnet20.ini mine.ini
ends "config of a file that includes one that is here" 0 cresnet config cifar10-resnet56.ini
has "config of a file that includes one that is here" "$said" "cifar10-resnet20.ini is here already and was not changed"
holds "the file of the user" cmp cifar10-resnet20.ini mine.ini
ends "a configuration that is not installed" 2 cresnet config ../demo.ini
has "a configuration that is not installed" "$said" "../demo.ini: no such configuration is installed; cresnet config lists them"
mkdir locked && chmod 555 locked
if [ "$(id -u)" != 0 ]; then ends "a folder that cannot be written" 1 sh -c 'cd locked && cresnet config demo.ini'; else skip "a folder that cannot be written: root writes everywhere"; fi
cd .. && mv prefix/share prefix/none
ends "no configuration is installed" 2 cresnet config
has "no configuration is installed" "$said" "no configurations are installed with this program: there is no folder $work/prefix/bin/../share/cresnet/configs"
sum_up
