// Work dealt out among processes, on one machine or on several that share a folder.
//
// A claim is a file that only one process can create. While the work goes on the owner renews it; where its
// owner has died, or has not renewed it for `kClaimExpires`, the work may be claimed again under the next
// number: NAME.1, NAME.2, ... No file is ever renamed, so two processes never take over the same claim.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace augur {

inline constexpr std::chrono::seconds kClaimRenewed{15}, kClaimExpires{120};

class Claim {
 public:
  // The claim on `name` in `folder` (made where absent), or null where another process holds it. Throws Error
  // where the folder cannot be written.
  static std::unique_ptr<Claim> Take(const std::filesystem::path& folder, const std::string& name);
  // Gives it back.
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  explicit Claim(std::filesystem::path file);
  void Renew();

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread renewing_;
};

}  // namespace augur
