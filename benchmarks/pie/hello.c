/* The smallest program that says something: its first message is what launch.py waits for. Then it
 * reads messages: "call N" makes N pairs of alloc and free, "send N" sends N messages (calls.py). */
#define QUIRE_PROGRAM
#define QUIRE_RING 4096
#include "quire.h"

QUIRE_MANIFEST("{\"name\": \"hello\"}")

enum { QUEUE = 1, FIRST = 1 };

static uint32_t wanted;

static uint32_t number(const char *text, uint32_t length) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < length; i++) {
    if (text[i] >= '0' && text[i] <= '9') value = 10 * value + (uint32_t)(text[i] - '0');
  }
  return value;
}

void on_start(const char *args, uint32_t length) {
  (void)args;
  (void)length;
  quire_send("here", 4);
  quire_receive();
}

static void make_calls(uint32_t count) {
  quire_open_queue(QUEUE, 0);
  for (uint32_t i = 0; i < count; i++) {
    quire_handles(QUIRE_ALLOC_PAGES, QUEUE, FIRST, 1);
    wanted = quire_handles(QUIRE_FREE_PAGES, QUEUE, FIRST, 1);
  }
}

static void take(const char *text, uint32_t length) {
  if (length && text[0] == 'c') {
    make_calls(number(text, length));
  } else if (length && text[0] == 's') {
    for (uint32_t i = number(text, length); i; i--) wanted = quire_send("x", 1);
  }
}

void on_event(const quire_event *event) {
  if (event->status == QUIRE_CLOSED) {
    quire_end(0, 0, 0);
  } else if (event->op == QUIRE_RECEIVE) {
    take(quire_payload(event), event->length);
    if (!wanted) quire_receive();
  } else if (event->id == wanted) {
    wanted = 0;
    quire_send("done", 4);
    quire_receive();
  }
}
