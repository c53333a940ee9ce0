/* config_keys.h - the keys of a config.json that its reader does not use: which mean nothing to the
 * computation, which must have a value at which they mean nothing, and what becomes of the others.
 *
 * Weights look the same with and without most mechanisms, so a key that is passed over trains on a
 * model that is not the user's. Pure, any thread. */
#ifndef CLD_MODEL_CONFIG_KEYS_H
#define CLD_MODEL_CONFIG_KEYS_H

#include "formats/json_fields.h"

/* Looks at every key of r->object but those of `used`, a NULL-terminated list of what the reader
 * reads itself. A key that changes the computation is refused by name and value, and so is an
 * unknown one whose name speaks of a mechanism (a scale, a window, experts, ...); the names of
 * other unknown keys are warned about in one line. Complaints go to r->err, the first one stays. */
void cld_config_keys_check(const struct cld_fields *r, const char *const *used);

/* The same for an object that holds nothing but what its readers need: an unknown key is refused.
 * `name` is the object's, for messages. */
void cld_config_keys_refuse(const struct cld_fields *r, const char *const *used, const char *name);

#endif
