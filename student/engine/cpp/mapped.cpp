#include "mapped.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

class Descriptor {
 public:
  explicit Descriptor(const char* path) : number(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  const int number;
};

}  // namespace

Bytes mapped(const char* path) {
  const Descriptor file(path);
  require(file.number >= 0, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status;
  require(fstat(file.number, &status) == 0 && S_ISREG(status.st_mode), "is not a file");
  require(status.st_size > 0, "is empty");
  const auto size = static_cast<size_t>(status.st_size);
  void* const start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  require(start != MAP_FAILED, std::string("cannot be mapped: ") + std::strerror(errno));
  const auto unmap = [size](const unsigned char* bytes) { munmap(const_cast<unsigned char*>(bytes), size); };
  return {{static_cast<const unsigned char*>(start), unmap}, status.st_size};
}
