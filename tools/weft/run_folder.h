// SPDX-License-Identifier: Apache-2.0
//
// The run folder of a fabric (DESIGN 3): `$XDG_RUNTIME_DIR/weft/<name>/`, else `/tmp/weft-<uid>/<name>/`, mode 0700.
//
//   control       control socket                hosts.map            name, fabric address, loopback address per line
//   daemon.pid    pid of the daemon             hosts/<host>/attach  SEQPACKET socket of libweft
//   lock          held while a daemon lives     hosts/<host>/sys/    that host's sysfs tree
//   daemon.log                            ended                who ended the daemon, while it cleans up
//
// Whoever holds the lock owns the folder, and only its owner removes anything in it: leftovers of a daemon that was killed
// are removed by the next one, or by `weft down`, which takes the lock for that. Socket paths stay below the 108 bytes of sun_path whatever the name, because long names are shortened with a hash.
// Errors are one line for people; nothing here throws.
#pragma once

#include <sys/types.h>

#include <string>

#include "protocols/base/result.h"

namespace weft::tools {

template <typename T>
using Outcome = Result<T, std::string>;

/// Where a name's folder is. Pure, but for looking at the owner of XDG_RUNTIME_DIR.
struct RunFolder {
  std::string name;
  std::string parent;  ///< `<base>/weft` or `/tmp/weft-<uid>`
  std::string path;

  std::string file(const std::string& relative) const { return path + "/" + relative; }
  std::string control() const { return file("control"); }
  std::string ended() const { return file("ended"); }
  std::string host_folder(const std::string& host) const { return file("hosts/" + host); }
};

inline constexpr size_t kMaxHostName = 20;

/// Letters, digits, '.', '_' and '-', not starting with '.' or '-', at most 64.
bool is_valid_name(const std::string& name);

/// xdg: the value of XDG_RUNTIME_DIR or empty.
Outcome<RunFolder> find_run_folder(const std::string& name, const std::string& xdg, uid_t uid);
/// The same with this process's environment.
Outcome<RunFolder> find_run_folder(const std::string& name);

/// Makes parent and folder and checks that they are ours alone; empty or one line.
std::string make_run_folder(const RunFolder& folder);

/// The daemon's lock. The descriptor is close-on-exec.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  enum class Taken { kYes, kHeldByAnother, kGone, kFailed };
  /// Makes the folder if it is not there; never kGone.
  Taken take(const RunFolder& folder);
  /// kGone: there is no such folder.
  Taken take_existing(const RunFolder& folder);
  void release();
  /// Held, and the folder still has our lock file and not none or another's.
  bool is_still_there(const RunFolder& folder) const;

 private:
  Taken try_once(const RunFolder& folder);

  int fd_ = -1;
};

/// Is a daemon alive in it (does somebody hold the lock)?
bool is_locked(const RunFolder& folder);

/// Removes what is in the folder but the lock. Follows no symbolic link.
void clear_run_folder(const RunFolder& folder);
/// Removes the folder itself too, and the parent if that is empty then. Nothing when the lock is not that folder's.
void remove_run_folder(const RunFolder& folder, const FolderLock& lock);
/// The same for a folder that nobody holds. kYes: it was there and is gone.
FolderLock::Taken remove_leftovers(const RunFolder& folder);
/// Is the daemon that holds the lock one that serves? False while it starts, ends, dies, or where a `weft down` cleans up.
bool holder_is_alive(const RunFolder& folder);

/// Writes a small file whole; empty or one line.
std::string write_file(const std::string& path, const std::string& content);
std::string read_file(const std::string& path);

}  // namespace weft::tools
