/* config_table.h - the table of configuration keys, for the files config*.c alone. Read-only. */
#ifndef CLD_CONFIG_CONFIG_TABLE_H
#define CLD_CONFIG_CONFIG_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

enum cld_key_type {                /* the C type of its field */
                    CLD_KEY_BOOL,  /* bool */
                    CLD_KEY_INT,   /* int64_t */
                    CLD_KEY_SIZE,  /* size_t */
                    CLD_KEY_REAL,  /* double */
                    CLD_KEY_TEXT,  /* char *, owned */
                    CLD_KEY_PATH,  /* char *, owned */
                    CLD_KEY_ENUM,  /* an enum, numbered in the order of `names` */
                    CLD_KEY_SIZES, /* struct cld_size_list */
                    CLD_KEY_REALS, /* struct cld_real_list */
                    CLD_KEY_TEXTS, /* struct cld_text_list */
                    CLD_KEY_ENUMS, /* struct cld_enum_list */
                    CLD_KEY_SHAPES /* struct cld_shape_list */
};

enum cld_key_change {                /* what a resumed run may do with the key */
                      CLD_KEY_FIXED, /* alters the mathematics: refused */
                      CLD_KEY_FREE,
                      CLD_KEY_GROWS /* may become larger */
};

/* Bits of `needed` are 1 << enum cld_config_use, and these for what benchmarks measure. */
enum {
    CLD_NEEDED_BENCH_MODEL = 1 << 8, /* anything but products: the drafter's geometry */
    CLD_NEEDED_BENCH_STEP = 1 << 9
};

struct cld_config_key {
    const char *section, *name;
    enum cld_key_type type;
    size_t offset;             /* of the field in struct cld_config */
    const char *default_text;  /* NULL: stays open until given */
    const char *word;          /* text that leaves the key open ("none", "auto", ...), or NULL */
    double min, max;           /* of numbers, and of each number in a list */
    bool above_min, below_max; /* the bound itself is not allowed */
    size_t min_n, max_n;       /* items of a list */
    const char *unit;          /* "" where there is none */
    const char *const *names;  /* of an enum, ends with NULL */
    enum cld_key_change change;
    unsigned needed; /* the commands that cannot do without, as bits */
    const char *help;
};

/* Sections are together, in the order in which they are printed. Ends with a NULL section. */
extern const struct cld_config_key cld_config_keys[];
extern const size_t cld_config_n_keys;

/* The row of a key, also by a name that it had before (old_names.h); NULL: there is none. The
 * second is for "section.key". */
const struct cld_config_key *cld_config_key_of(const char *section, const char *name);
const struct cld_config_key *cld_config_key_named(const char *name);

/* What a section is about, for help; NULL for an unknown section. */
const char *cld_config_section_help(const char *section);

#endif
