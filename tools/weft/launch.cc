// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/launch.h"

#include <elf.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace weft::tools {
namespace {

std::string own_folder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0) return {};
  const std::string full(path, static_cast<size_t>(size));
  return full.substr(0, full.rfind('/'));
}

/// Where nobody can look for want of descriptors, it counts as there.
bool matches(const char* pattern) {
  glob_t found{};
  errno = 0;
  const bool any = glob(pattern, 0, nullptr, &found) == 0 || errno == EMFILE || errno == ENFILE;
  globfree(&found);
  return any;
}

/// A dynamically linked ELF names its loader.
bool is_static_elf(const std::string& path);

bool changes_user(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && (((info.st_mode & S_ISUID) != 0 && info.st_uid != geteuid()) ||
                                            ((info.st_mode & S_ISGID) != 0 && info.st_gid != getegid()));
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The kernel keeps 15 characters of a program's name.
std::string comm_of(const std::string& path) { return base_name(path).substr(0, 15); }

}  // namespace

// rdma-core finds a provider by a .driver file and loads a library that carries its name; both have to be there.
bool is_rxe_provider_installed() {
  if (!matches("/etc/libibverbs.d/*rxe*.driver") && !matches("/usr/local/etc/libibverbs.d/*rxe*.driver")) return false;
  for (const char* library : {"/usr/lib/*/libibverbs/librxe-rdmav*.so", "/usr/lib/libibverbs/librxe-rdmav*.so",
                              "/usr/lib64/libibverbs/librxe-rdmav*.so", "/usr/local/lib/libibverbs/librxe-rdmav*.so",
                              "/usr/local/lib/*/libibverbs/librxe-rdmav*.so"}) {
    if (matches(library)) return true;
  }
  return false;
}

namespace {

bool is_static_elf(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  Elf64_Ehdr header{};
  bool is_elf = pread(fd, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header) &&
                std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64;
  bool has_loader = false;
  for (uint16_t i = 0; is_elf && i < header.e_phnum && i < 128; ++i) {
    Elf64_Phdr segment{};
    const auto at = static_cast<off_t>(header.e_phoff) + i * static_cast<off_t>(sizeof segment);
    if (pread(fd, &segment, sizeof segment, at) != static_cast<ssize_t>(sizeof segment)) break;
    has_loader = has_loader || segment.p_type == PT_INTERP;
  }
  close(fd);
  return is_elf && !has_loader;
}

constexpr off_t kMaxProgram = 1 << 30;

/// A whole file, mapped to be read; empty when that is not possible.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info{};
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0 && info.st_size < kMaxProgram) {
      void* mapped = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (mapped != MAP_FAILED) bytes_ = {static_cast<const char*>(mapped), static_cast<size_t>(info.st_size)};
    }
    if (fd >= 0) close(fd);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  template <typename T>
  bool read(uint64_t at, T& value) const {
    if (at > bytes_.size() || bytes_.size() - at < sizeof value) return false;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return true;
  }
  std::string text(uint64_t at) const {
    if (at >= bytes_.size()) return {};
    return std::string(bytes_.data() + at, strnlen(bytes_.data() + at, std::min<size_t>(bytes_.size() - at, 256)));
  }

 private:
  std::string_view bytes_;
};

}  // namespace

// By sections, as linkers write them: .dynamic, and the string table that it is linked to.
std::string needed_sanitizer(const std::string& program) {
  const MappedFile file(program);
  Elf64_Ehdr header{};
  if (!file.read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return {};
  const auto section_at = [&](uint64_t index, Elf64_Shdr& section) {
    return file.read(header.e_shoff + index * sizeof section, section);
  };
  for (uint16_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr dynamic{};
    Elf64_Shdr strings{};
    if (!section_at(i, dynamic) || dynamic.sh_type != SHT_DYNAMIC || !section_at(dynamic.sh_link, strings)) continue;
    Elf64_Dyn entry{};
    for (uint64_t at = 0; at < dynamic.sh_size && file.read(dynamic.sh_offset + at, entry) && entry.d_tag != DT_NULL; at += sizeof entry) {
      const std::string library = entry.d_tag == DT_NEEDED ? file.text(strings.sh_offset + entry.d_un.d_val) : std::string();
      if (library.compare(0, 10, "libasan.so") == 0) return library;
    }
  }
  return {};
}

Outcome<std::string> find_preload_library() {
  const std::string here = own_folder();
  std::vector<std::string> places = {here + "/libweft.so", here + "/../lib/weft/libweft.so"};
#ifdef WEFT_LIBRARY_FROM_BIN
  places.push_back(here + "/" + WEFT_LIBRARY_FROM_BIN);
#endif
  for (const std::string& place : places) {
    char* full = realpath(place.c_str(), nullptr);
    if (full == nullptr) continue;
    const std::string found = full;
    free(full);
    return found;
  }
  return Failure{"libweft.so is not beside this program (" + here + ") nor where it is installed; build or install weft whole"};
}

Outcome<std::string> preloadable_path(const std::string& library, const RunFolder& folder) {
  if (library.find_first_of(" :") == std::string::npos) return library;
  const std::string link = folder.file("libweft.so");
  if (link.find_first_of(" :") != std::string::npos) {
    return Failure{"LD_PRELOAD cannot carry a path with a space or a colon: " + library};
  }
  if (symlink(library.c_str(), link.c_str()) != 0 && errno != EEXIST) {
    return Failure{"cannot make " + link + ": " + std::strerror(errno)};
  }
  return link;
}

Outcome<Environment> host_environment(const RunFolder& folder, const std::string& host, uint64_t run_id,
                                      const std::string& program) {
  Outcome<std::string> library = find_preload_library();
  if (!library) return Failure{library.error()};
  library = preloadable_path(*library, folder);
  if (!library) return Failure{library.error()};
  // GCC's AddressSanitizer ends a program in which another library was loaded before it.
  const std::string sanitizer = program.empty() ? std::string() : needed_sanitizer(find_program(program));
  std::string preload = sanitizer.empty() ? *library : sanitizer + ":" + *library;
  // A program of its own may be preloaded already; a weft around this one, for another host, is replaced.
  const char* existing = getenv("LD_PRELOAD");
  for (const char* from = existing == nullptr ? "" : existing; *from != '\0';) {
    const size_t size = std::strcspn(from, " :");
    const std::string entry(from, size);
    const bool is_weft = entry.size() >= 10 && entry.compare(entry.size() - 10, 10, "libweft.so") == 0;
    if (!entry.empty() && !is_weft) preload += ":" + entry;
    from += size;
    from += std::strspn(from, " :");
  }
  Environment environment = {{"LD_PRELOAD", preload}, {"WEFT_RUN", folder.path}, {"WEFT_HOST", host}, {"WEFT_NAME", folder.name}};
  if (run_id != 0) environment.emplace_back("WEFT_RUN_ID", std::to_string(run_id));
  return environment;
}

std::string find_program(const std::string& name) {
  const auto runs = [](const std::string& path) {
    struct stat info{};
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? name : std::string();
  const char* search = getenv("PATH");
  std::string paths = search == nullptr ? "/usr/local/bin:/usr/bin:/bin" : search;
  for (size_t from = 0; from <= paths.size();) {
    const size_t end = std::min(paths.find(':', from), paths.size());
    const std::string folder = end == from ? std::string(".") : paths.substr(from, end - from);
    if (runs(folder + "/" + name)) return folder + "/" + name;
    from = end + 1;
  }
  return {};
}

namespace {

/// Why libweft.so cannot be in a program of this file; empty: nothing speaks against it.
std::string why_not_loaded(const std::string& path) {
  if (path.empty()) return {};
  if (is_static_elf(path)) return "it is linked statically, so libweft.so cannot be loaded into it";
  if (changes_user(path)) return "it is setuid or setgid, so the loader ignores libweft.so";
  return {};
}

/// The program that the child became last, where it was started by another (env, nice, a wrapper) and without us.
std::string program_without_us(const EndedRun& run) {
  if (!run.notes.known || run.last_name.empty() || run.notes.was_loaded_into(run.pid, run.last_name)) return {};
  // A program that gave itself another name is not one that was run: only words of the command line count.
  for (size_t i = 1; i < run.command.size(); ++i) {
    if (comm_of(run.command[i]) == run.last_name) return run.command[i];
  }
  return {};
}

}  // namespace

std::string why_nothing_opened(const EndedRun& run) {
  const std::string program = run.command.empty() ? std::string() : find_program(run.command[0]);
  if (!run.notes.refusal.empty()) return "it could not attach: " + run.notes.refusal;
  if (std::string why = why_not_loaded(program); !why.empty()) return why;
  if (const std::string last = program_without_us(run); !last.empty()) {
    const std::string why = why_not_loaded(find_program(last));
    return base_name(last) + " ran without libweft.so: " +
           (why.empty() ? base_name(run.command[0]) + " did not hand LD_PRELOAD on to it" : why);
  }
  if (run.notes.known && !run.notes.was_loaded_into(run.pid)) {
    return "libweft.so was not loaded into it: its loader ignores LD_PRELOAD (file capabilities, another architecture or C library)";
  }
  if (!is_rxe_provider_installed()) {
    return "no rxe provider of rdma-core is installed (Debian and Ubuntu: apt-get install ibverbs-providers)";
  }
  return "nothing that libweft.so was loaded into tried to";
}

uint64_t new_run_id() {
  uint64_t id = 0;
  while (id == 0) {
    if (getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) id = static_cast<uint64_t>(getpid());
  }
  return id;
}

}  // namespace weft::tools
