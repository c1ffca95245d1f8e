// SPDX-License-Identifier: Apache-2.0
// A program that no library can be loaded into.
int main(void) { return 0; }
