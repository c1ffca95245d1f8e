// SPDX-License-Identifier: Apache-2.0
//
// Linked statically: no preload reaches it. `weft run` must run it all the same, and say afterwards why nothing was
// opened. Exits with the code given.
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  puts("static program ran");
  return argc > 1 ? atoi(argv[1]) : 0;
}
