/* config_sweep.h - the lines of [sweep] in a configuration. Any thread. */
#ifndef CLD_CONFIG_CONFIG_SWEEP_H
#define CLD_CONFIG_CONFIG_SWEEP_H

#include "config/config.h"

/* The values that a line of [sweep] gives to "section.key", each one valid for the key by itself.
 * Values of a list stand between bars; others between commas, and numbers may be ranges: FROM..TO*F
 * and FROM..TO+STEP. *out is freed with cld_config_values_free whatever the result was.
 * CLD_E_USAGE. */
enum cld_status cld_config_expand(const char *name, const char *text, struct cld_text_list *out,
                                  struct cld_error *err);
void cld_config_values_free(struct cld_text_list *values);

/* --- for config.c alone --- */

/* Sets the values of the known key `name`, in place of what it had; each is checked by itself.
 * CLD_E_USAGE. */
enum cld_status cld_config_swept_set(struct cld_config *cfg, const char *name, const char *text,
                                     int origin, struct cld_error *err);
void cld_config_swept_free(struct cld_config *cfg);

#endif
