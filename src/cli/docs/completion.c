/* cli/docs/completion.c: completion for bash, zsh and fish: `cresnet help completion SHELL`. Commands, options, config
 * keys and the words that a value may be come from the tables that the program itself reads; what is not a word of a
 * list is completed as a file. */
#include "cli/command.h"
#include "config/keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static void add(struct cr_text *out, const char *s) {
    cr_text_add_bytes(out, s, strlen(s));
}

/* The words of an enum key or of yes and no, blanks between them; returns whether there are any. */
static bool add_key_words(struct cr_text *out, const struct cr_key *key) {
    if (key->kind == CR_KEY_BOOL) add(out, "yes no");
    if (key->kind != CR_KEY_ENUM) return key->kind == CR_KEY_BOOL;
    for (int i = 0; i < key->words.count; i++) cr_text_add(out, "%s%s", i ? " " : "", key->words.at[i]);
    return true;
}

/* The words that an option's value may be: those of its key, else what stands between | in small letters ("auto|PATH":
 * auto). */
static bool add_option_words(struct cr_text *out, const struct cr_cli_option *o) {
    const struct cr_key *key = o->key ? cr_key_dotted(o->key) : NULL;
    bool                 any = false;
    if (key && add_key_words(out, key)) return true;
    if (!o->value || !strchr(o->value, '|')) return false;
    for (const char *s = o->value; *s;) {
        size_t length = strcspn(s, "|");
        if (islower((unsigned char)*s)) {
            cr_text_add(out, "%s%.*s", any ? " " : "", (int)length, s);
            any = true;
        }
        s += length + (s[length] == '|');
    }
    return any;
}

/* May the value be a file too, beside the words? ("auto|PATH") */
static bool takes_file(const struct cr_cli_option *o) {
    return strchr(o->value, '|') && isupper((unsigned char)o->value[strlen(o->value) - 1]);
}

/* Inside '...' of a shell; `special`: letters that get a backslash. */
static void add_quoted(struct cr_text *out, const char *s, const char *special) {
    for (; *s; s++) {
        if (*s == '\'')
            add(out, "'\\''");
        else
            cr_text_add(out, "%s%c", strchr(special, *s) ? "\\" : "", *s);
    }
}

static void add_programs(struct cr_text *out) {
    add(out, "cresnet");
    for (int c = 0; c < CR_CMD_COUNT; c++) cr_text_add(out, " cresnet-%s", cr_command((enum cr_command_id)c)->name);
}

static const struct cr_cli_option *option_of(int command, int id) {
    return cr_cli_option_belongs((enum cr_option_id)id, (enum cr_command_id)command)
               ? cr_cli_option((enum cr_option_id)id)
               : NULL;
}

/* ---- bash ---- */

static void bash_options(struct cr_text *out) {
    for (int c = 0; c < CR_CMD_COUNT; c++) {
        cr_text_add(out, "    %s) options='", cr_command((enum cr_command_id)c)->name);
        for (int i = 0; i < CR_OPT_COUNT; i++)
            if (option_of(c, i)) cr_text_add(out, "--%s ", cr_cli_option((enum cr_option_id)i)->name);
        add(out, "' ;;\n");
    }
}

/* "command --option" or "key=": the words behind it. */
static void bash_words(struct cr_text *out) {
    for (int i = 0; i < cr_key_count; i++) {
        struct cr_text words = {0};
        if (add_key_words(&words, &cr_keys[i]))
            cr_text_add(out, "    %s.%s) words='%s' ;;\n", cr_keys[i].section, cr_keys[i].name,
                        words.data ? words.data : "");
        out->failed |= words.failed;
        cr_text_free(&words);
    }
    for (int c = 0; c < CR_CMD_COUNT; c++) {
        for (int i = 0; i < CR_OPT_COUNT; i++) {
            struct cr_text words = {0};
            if (option_of(c, i) && add_option_words(&words, option_of(c, i)))
                cr_text_add(out, "    '%s --%s') words='%s' ;;\n", cr_command((enum cr_command_id)c)->name,
                            option_of(c, i)->name, words.data ? words.data : "");
            out->failed |= words.failed;
            cr_text_free(&words);
        }
    }
}

void cr_doc_bash(struct cr_text *out) {
    add(out, "# bash completion for cresnet, made by: cresnet help completion bash\n"
             "_cresnet() {\n"
             "    local line=${COMP_LINE:0:COMP_POINT} current before command options= words= name reply=()\n"
             "    current=${line##*[[:space:]]} before=${line%\"$current\"}\n"
             "    local -a word; read -ra word <<<\"$before\"\n"
             "    command=${word[0]##*/}\n"
             "    COMPREPLY=()\n"
             "    if [[ $command == cresnet-* ]]; then command=${command#cresnet-}\n"
             "    elif ((${#word[@]} > 1)); then command=${word[1]}\n"
             "    else\n"
             "        COMPREPLY=($(compgen -W '");
    for (int c = 0; c < CR_CMD_COUNT; c++) cr_text_add(out, "%s ", cr_command((enum cr_command_id)c)->name);
    add(out, "' -- \"$current\"))\n"
             "        return\n"
             "    fi\n"
             "    case $command in\n");
    bash_options(out);
    add(out, "    *) return ;;\n"
             "    esac\n"
             "    # What the value belongs to: the option before it, --option=, or section.key=\n"
             "    name=\"$command ${word[${#word[@]} - 1]}\"\n"
             "    case $current in\n"
             "    --*.*=*) name=${current%%=*} name=${name#--} current=${current#*=} ;;\n"
             "    --*=*) name=\"$command ${current%%=*}\" current=${current#*=} ;;\n"
             "    *.*=*) name=${current%%=*} current=${current#*=} ;;\n"
             "    esac\n"
             "    case $name in\n");
    bash_words(out);
    add(out, "    esac\n"
             "    if [[ $words ]]; then reply=($(compgen -W \"$words\" -- \"$current\"))\n"
             "    elif [[ $current == --* ]]; then reply=($(compgen -W \"$options\" -- \"$current\"))\n"
             "    elif [[ $current == *[a-z]* && $command == help ]]; then reply=($(compgen -W 'keys man completion ");
    for (int c = 0; c < CR_CMD_COUNT; c++) cr_text_add(out, "%s ", cr_command((enum cr_command_id)c)->name);
    add(out, "' -- \"$current\"))\n"
             "    elif [[ $current == [a-z]*.* && $current != */* ]]; then\n"
             "        reply=($(compgen -W '");
    for (int i = 0; i < cr_key_count; i++) cr_text_add(out, "%s.%s= ", cr_keys[i].section, cr_keys[i].name);
    add(out, "' -- \"$current\"))\n"
             "        ((${#reply[@]})) && compopt -o nospace 2>/dev/null\n"
             "    fi\n"
             "    COMPREPLY=(\"${reply[@]}\")\n"
             "}\n"
             "complete -o default -F _cresnet ");
    add_programs(out);
    add(out, "\n");
}

/* ---- zsh ---- */

static void zsh_value(struct cr_text *out, const struct cr_cli_option *o) {
    if (!o->value) return;
    add(out, ":");
    add_quoted(out, o->value, ":[]");
    add(out, ":");
    struct cr_text words = {0};
    if (!add_option_words(&words, o))
        add(out, "_files");
    else if (takes_file(o))
        cr_text_add(out, "_alternative \"words\\:word\\:(%s)\" \"files\\:file\\:_files\"",
                    words.data ? words.data : "");
    else
        cr_text_add(out, "(%s)", words.data ? words.data : "");
    out->failed |= words.failed;
    cr_text_free(&words);
}

static void zsh_option(struct cr_text *out, const struct cr_cli_option *o) {
    cr_text_add(out, " \\\n        '--%s%s[", o->name, o->value ? "=" : "");
    add_quoted(out, o->help, "[]:");
    add(out, "]");
    zsh_value(out, o);
    add(out, "'");
    if (!o->letter) return;
    cr_text_add(out, " \\\n        '-%c%s[", o->letter, o->value ? "+" : "");
    add_quoted(out, o->help, "[]:");
    add(out, "]");
    zsh_value(out, o);
    add(out, "'");
}

void cr_doc_zsh(struct cr_text *out) {
    add(out, "#compdef ");
    add_programs(out);
    add(out, "\n# made by: cresnet help completion zsh\n_cresnet_operand() {\n"
             "    local name=${PREFIX%%=*}\n"
             "    if [[ $PREFIX == *.*=* ]]; then\n"
             "        compset -P 1 '*='\n"
             "        case $name in\n");
    for (int i = 0; i < cr_key_count; i++) {
        struct cr_text words = {0};
        if (add_key_words(&words, &cr_keys[i]))
            cr_text_add(out, "        %s.%s) compadd -- %s ;;\n", cr_keys[i].section, cr_keys[i].name,
                        words.data ? words.data : "");
        out->failed |= words.failed;
        cr_text_free(&words);
    }
    add(out, "        *) _files ;;\n        esac\n        return\n    fi\n    _files\n    compadd -S '' -- ");
    for (int i = 0; i < cr_key_count; i++) cr_text_add(out, " %s.%s=", cr_keys[i].section, cr_keys[i].name);
    add(out, "\n}\n_cresnet() {\n    local command\n    local -a commands\n    commands=(\n");
    for (int c = 0; c < CR_CMD_COUNT; c++) {
        cr_text_add(out, "        '%s:", cr_command((enum cr_command_id)c)->name);
        add_quoted(out, cr_command((enum cr_command_id)c)->summary, ":");
        add(out, "'\n");
    }
    add(out, "    )\n"
             "    if [[ $service == cresnet-* ]]; then command=${service#cresnet-}\n"
             "    elif ((CURRENT == 2)); then _describe command commands; return\n"
             "    else command=$words[2]; shift words; ((CURRENT--)); fi\n"
             "    case $command in\n");
    for (int c = 0; c < CR_CMD_COUNT; c++) {
        cr_text_add(out, "    %s) _arguments -S", cr_command((enum cr_command_id)c)->name);
        for (int i = 0; i < CR_OPT_COUNT; i++)
            if (option_of(c, i)) zsh_option(out, option_of(c, i));
        add(out, " \\\n        '*:operand:_cresnet_operand' ;;\n");
    }
    add(out, "    esac\n}\n_cresnet \"$@\"\n");
}

/* ---- fish ---- */

/* The start of a rule: for the command as a word of cresnet, or as a program of its own. */
static void fish_rule(struct cr_text *out, int command, bool alone) {
    const char *name = cr_command((enum cr_command_id)command)->name;
    if (alone)
        cr_text_add(out, "complete -c cresnet-%s", name);
    else
        cr_text_add(out, "complete -c cresnet -n '__fish_seen_subcommand_from %s'", name);
}

static void fish_option(struct cr_text *out, const struct cr_cli_option *o) {
    struct cr_text words = {0};
    cr_text_add(out, " -l %s", o->name);
    if (o->letter) cr_text_add(out, " -s %c", o->letter);
    if (add_option_words(&words, o))
        cr_text_add(out, " %s -a '%s'", takes_file(o) ? "-r" : "-x", words.data ? words.data : "");
    else if (o->value)
        add(out, " -r");
    add(out, " -d '");
    add_quoted(out, o->help, "\\");
    add(out, "'\n");
    out->failed |= words.failed;
    cr_text_free(&words);
}

static void fish_keys(struct cr_text *out) {
    add(out, "set -g __cresnet_keys");
    for (int i = 0; i < cr_key_count; i++) {
        const struct cr_key *key = &cr_keys[i];
        if (key->kind == CR_KEY_BOOL)
            cr_text_add(out, " %s.%s=yes %s.%s=no", key->section, key->name, key->section, key->name);
        else if (key->kind != CR_KEY_ENUM)
            cr_text_add(out, " %s.%s=", key->section, key->name);
        for (int w = 0; key->kind == CR_KEY_ENUM && w < key->words.count; w++)
            cr_text_add(out, " %s.%s=%s", key->section, key->name, key->words.at[w]);
    }
    add(out, "\n");
}

void cr_doc_fish(struct cr_text *out) {
    add(out, "# fish completion for cresnet, made by: cresnet help completion fish\n");
    fish_keys(out);
    for (int c = 0; c < CR_CMD_COUNT; c++) {
        const struct cr_command *command = cr_command((enum cr_command_id)c);
        cr_text_add(out, "complete -c cresnet -n __fish_use_subcommand -f -a %s -d '", command->name);
        add_quoted(out, command->summary, "\\");
        add(out, "'\n");
        for (int alone = 0; alone < 2; alone++) {
            for (int i = 0; i < CR_OPT_COUNT; i++) {
                if (!option_of(c, i)) continue;
                fish_rule(out, c, alone);
                fish_option(out, option_of(c, i));
            }
            fish_rule(out, c, alone);
            cr_text_add(out, c == CR_CMD_HELP ? " -f -a 'keys man completion'\n" : " -a '$__cresnet_keys'\n");
        }
    }
}
