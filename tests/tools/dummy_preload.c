// SPDX-License-Identifier: Apache-2.0
// Stands beside weft_fake for libweft.so: loaded, and does nothing.
int weft_dummy_preload(void);
int weft_dummy_preload(void) { return 0; }
