#include "read.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
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

Bytes read_file(const char* path) {
  const Descriptor file(path);
  require(file.number >= 0, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status;
  require(fstat(file.number, &status) == 0 && S_ISREG(status.st_mode), "is not a file");
  require(status.st_size > 0, "is empty");
  const auto size = static_cast<size_t>(status.st_size);
  const std::shared_ptr<unsigned char> bytes(new unsigned char[size], std::default_delete<unsigned char[]>());
  for (size_t done = 0; done < size;) {
    const ssize_t count = read(file.number, bytes.get() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, std::string("cannot be read: ") + std::strerror(errno));
    require(count > 0, "became shorter while it was read");
    done += static_cast<size_t>(count);
  }
  return {bytes, status.st_size};
}
