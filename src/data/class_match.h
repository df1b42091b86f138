/* data/class_match.h: compares two lists of class names: of a dataset and trained weights, of a teacher and a training
 * set, or of training and validation. Classes are matched by name, never by number. */
#ifndef CR_CLASS_MATCH_H
#define CR_CLASS_MATCH_H

#include "core/base.h"

enum cr_class_relation {
    CR_CLASSES_EQUAL,    /* the same classes in the same order */
    CR_CLASSES_PERMUTED, /* the same classes in another order */
    CR_CLASSES_OTHER     /* a list has a class that the other one lacks, or the lists differ and one has a name twice */
};

/* What `spelling` ignores, in messages. */
#define CR_CLASS_SPELLING "upper and lower case, blanks or the encoding of accents"

struct cr_class_match {
    enum cr_class_relation relation;
    int                   *to;      /* [classes of `from`] the index of the same class in `onto`, or -1 */
    int                    moved;   /* the first class of `from` that has another index in `onto`, or -1 */
    int                    respelt; /* the first class whose two names are spelt differently, or -1 */
    int                    matched; /* number of classes of `from` that are in `onto` */
    int                    shown;   /* CR_CLASSES_OTHER, as many names: an index at which they differ, for messages */
};

/* Finds each class of from[count] in onto[onto_count], in O(n log n). Identical names are matched first. With
 * `spelling`, two unmatched names are also the same class if they differ only in upper and lower case, blanks or
 * Unicode normalisation (an accent as a separate character) and no third name has this form. The caller frees *out
 * with cr_class_match_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_class_match(const char *const *from, int count, const char *const *onto, int onto_count,
                                 bool spelling, struct cr_class_match *out);
void              cr_class_match_free(struct cr_class_match *match);
/* Logs what a match with equal or permuted classes means to the user; nothing when both lists are identical. `one` and
 * `other` name the owners of `from` and `onto`: "the dataset", "the weights". */
void cr_class_match_log(const struct cr_class_match *match, const char *const *from, const char *const *onto,
                        const char *one, const char *other);

/* The form of a name that ignores case, blanks at its ends, the number of blanks between words, and Unicode
 * normalisation (letters of Latin, Greek, Cyrillic, Hangul and kana; other characters stay). Appends it to `out`. */
void cr_class_name_fold(const char *name, struct cr_text *out);
/* The index of the one name that differs from `name` only in its spelling, or -1. For messages about a name that a list
 * lacks. */
int cr_class_find_respelt(const char *name, const char *const *names, int count);

#endif
