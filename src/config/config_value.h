/* config_value.h - one value of the configuration: text to field and back. For config*.c alone. */
#ifndef CLD_CONFIG_CONFIG_VALUE_H
#define CLD_CONFIG_CONFIG_VALUE_H

#include <stdbool.h>
#include <stdio.h>

#include "config/config_table.h"

/* Parses `text` by the rules of `key` and replaces the field of `cfg`. CLD_E_USAGE "SECTION.KEY =
 * TEXT: what is wrong", with what is expected as the hint; the field is then unchanged. */
enum cld_status cld_config_value_set(struct cld_config *cfg, const struct cld_config_key *key,
                                     const char *text, struct cld_error *err);

/* Sets the field to "open" (0, -1, NULL, empty), without looking at or freeing what is there. */
void cld_config_value_open(struct cld_config *cfg, const struct cld_config_key *key);
void cld_config_value_free(struct cld_config *cfg, const struct cld_config_key *key);

/* Is the field at the value that means "not given"? Only for keys that can be open (a word, or no
 * default); others are never open. */
bool cld_config_value_is_open(const struct cld_config *cfg, const struct cld_config_key *key);

/* Writes the value in the one spelling that cld_config_value_set reads back to the same value:
 * the key's word where it is open, nothing where it is open and has no word. */
void cld_config_value_print(const struct cld_config *cfg, const struct cld_config_key *key,
                            FILE *to);

/* "whole number, 1 to 64 tokens", "one of: sparse, dense": what the key takes. */
void cld_config_value_describe(const struct cld_config_key *key, FILE *to);

#endif
