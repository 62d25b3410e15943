/* Two ops on two variables, and an error that finds its way to who waits. */
#include <engine/c_api.h>
#include <stdio.h>

static int32_t Double(EngineContext* context, void* number) {
  (void)context;
  *(int*)number *= 2;
  return 0;
}

static int32_t Divide(EngineContext* context, void* unused) {
  (void)unused;
  EngineOpSetError(context, "division by zero");
  return 1;
}

int main(void) {
  EngineHandle engine;
  EngineVar y;
  int value = 7;
  if (EngineCreate(NULL, &engine) != ENGINE_OK || EngineVarNew(engine, "y", &y) != ENGINE_OK) {
    fprintf(stderr, "%s\n", EngineGetLastError());
    return 1;
  }

  EngineOpDesc op = {.struct_size = sizeof op, .name = "double", .site = ENGINE_HERE};
  op.updates = &y;
  op.num_updates = 1;
  EnginePush(engine, &op, Double, &value, NULL); /* returns at once */
  if (EngineWait(engine, y, ENGINE_HERE) == ENGINE_OK) printf("y = %d\n", value);

  op.name = "divide";
  op.site = ENGINE_HERE;
  EnginePush(engine, &op, Divide, NULL, NULL);
  if (EngineWait(engine, y, ENGINE_HERE) == ENGINE_E_OP) {
    const EngineOpError* error = EngineGetLastOpError();
    printf("op '%s' failed at %s:%d: %s\n", error->op, error->site.file, (int)error->site.line, error->cause_text);
  }

  EngineVarFree(y);
  return EngineDestroy(engine) == ENGINE_OK ? 0 : 1;
}
