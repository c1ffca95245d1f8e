// SPDX-License-Identifier: Apache-2.0
//
// port_events COUNT [CONTEXTS]: opens the first device CONTEXTS times, prints "ready STATE", then one line per event of each
// context, "CONTEXT TYPE PORT STATE", where STATE is what ibv_query_port says then; ends after COUNT events of each.
#include <stdio.h>
#include <stdlib.h>

#include "verbs_pair.h"

#define MOST 8

static int state_of(struct ibv_context* context) {
  struct ibv_port_attr port;
  return ibv_query_port(context, 1, &port) == 0 ? (int)port.state : -1;
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 1;
  const int contexts = argc > 2 ? atoi(argv[2]) : 1;
  struct ibv_context* context[MOST];
  if (contexts < 1 || contexts > MOST) return 2;
  for (int i = 0; i < contexts; ++i) {
    context[i] = verbs_open_first_device();
    if (context[i] == NULL) return 1;
  }
  printf("ready %d\n", state_of(context[0]));
  fflush(stdout);
  for (int n = 0; n < count; ++n) {
    for (int i = 0; i < contexts; ++i) {
      struct ibv_async_event event;
      if (ibv_get_async_event(context[i], &event)) return 1;
      printf("%d %s %d %d\n", i, ibv_event_type_str(event.event_type), event.element.port_num, state_of(context[i]));
      fflush(stdout);
      ibv_ack_async_event(&event);
    }
  }
  for (int i = 0; i < contexts; ++i) ibv_close_device(context[i]);
  return 0;
}
