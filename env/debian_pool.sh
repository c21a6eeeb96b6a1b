# Sourced: files of Debian's package pool by sha256, from the mirrors that apt uses on this machine.

# pool_file POOL-FOLDER FILE SHA256 INTO LOG: 1 if no mirror has the file with that digest.
pool_file() {
  local mirror
  for mirror in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u); do
    # apt checks the digest, and downloads as a user of its own who cannot write into a home folder.
    /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "${mirror%/}/pool/$1/${2//+/%2b}" "$4/$2" "SHA256:$3" \
      >>"$5" 2>&1 && return 0
  done
  return 1
}
