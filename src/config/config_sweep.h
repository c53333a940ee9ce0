/* config_sweep.h - the lines of [sweep] in a configuration, for config.c alone. */
#ifndef CLD_CONFIG_CONFIG_SWEEP_H
#define CLD_CONFIG_CONFIG_SWEEP_H

#include "config/config.h"

/* Sets the values of the known key `name`, in place of what it had; each is checked by itself.
 * CLD_E_USAGE. */
enum cld_status cld_config_swept_set(struct cld_config *cfg, const char *name, const char *text,
                                     int origin, struct cld_error *err);
void cld_config_swept_free(struct cld_config *cfg);

#endif
