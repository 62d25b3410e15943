#include "here.h"

#include "completion.h"
#include "scratch.h"

namespace engine_mxnet {

constinit thread_local Here t_here [[gnu::tls_model("initial-exec")]];

void Here::Keep() {
  struct Owner {
    ~Owner() {
      delete t_here.spare;
      delete[] t_here.names;
      delete t_here.scratch;
      t_here.spare = nullptr;
      t_here.names = nullptr;
      t_here.scratch = nullptr;
      t_here.ending = true;
    }
    bool used = false;
  };
  static thread_local Owner owner;
  owner.used = true;
}

}  // namespace engine_mxnet
