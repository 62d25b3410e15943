#include <engine/c_api.h>
#include <stdio.h>

static int32_t Set(EngineContext* context, void* x) { return (void)context, *(int*)x = 42, 0; }

int main(void) {
  EngineHandle engine = NULL;
  int x = 0;
  EngineOpDesc op = {.struct_size = sizeof op, .name = "set", .site = ENGINE_HERE};
  if (EngineCreate(NULL, &engine) || EnginePush(engine, &op, Set, &x, NULL) || EngineDestroy(engine)) return 1;
  return printf("C %d\n", x) < 0;
}
