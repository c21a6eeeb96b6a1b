#pragma once
#include <string>

#include "unit/spellings.h"

/// Inputs of every kind that list a package which is a known hit.
namespace patchbench::spellings {

/// What tools print, recipes and scripts. The version as such a tool writes it.
inline Input pasted_of(const Planted& one, Random& random) {
  const std::string name = name_of(one.name, random),
                    pin = name + "==" + version_of(one.bad, random),
                    end = one_of(random, {"\n", "\r\n"}), quote = one_of(random, {"", "'", "\""}),
                    space = std::string(1 + random.below(20), ' ');
  const auto bullet = [&](const std::string& what, const std::string& version) {
    const std::string mark = one_of(random, {"- ", "", "* "}), tick = one_of(random, {"", "`"});
    return mark + tick + what + tick + " version" + one_of(random, {"", " (GPU?)"}) + ": " +
           version + one_of(random, {"", " (True)"}) + end;
  };
  switch (random.below(6)) {
    case 0:
      return {.kind = "pip-list",
              .text = one_of(random, {"", "$ pip list" + end}) + "Package" + space + "Version" +
                      end + "------- -------" + end + "numpy 1.26.4" + end + name + space +
                      one.bad + end};
    case 1:
      return {.kind = "conda-list",
              .text = "# packages in environment at /opt/conda:" + end + "numpy 1.26.4 py311_0" +
                      end + name + space + one.bad + space + "pypi_0" + space + "pypi" + end};
    case 2:
      return {.kind = "report",
              .text = bullet("PyTorch", "2.6.0+cu124") +
                      bullet(name, one_of(random, {"", "v"}) + one.bad) +
                      bullet("numpy", "1.26.4")};
    case 3:
      return {.kind = "conda environment",
              .text = one_of(random, {"", "---" + end, "# x" + end}) + "name: x" + end +
                      "dependencies:" + end + "  - numpy=1.26.4" + end + "  - pip:" + end +
                      "      - " + quote + pin + quote + end};
    case 4:
      return {.kind = "pyproject",
              .text = "[project]" + end +
                      one_of(random, {"dependencies", "optional-dependencies.x"}) +
                      " = [\"numpy==1.26.4\", '" + pin + "']" + end};
    default:
      return {
          .kind = "script",
          .text =
              one_of(random, {"FROM scratch" + end + "RUN ", "#!/bin/sh" + end, "export X=1; ",
                              "      - run: "}) +
              one_of(random, {"pip", "pip3", "python3 -m pip", "uv pip", "/opt/venv/bin/pip3.11",
                              "sudo -H pip", "pip --no-cache-dir", "xargs pip"}) +
              " install " + one_of(random, {"", "-q ", "-U ", "-i https://x/y ", "\\" + end}) +
              quote + pin + quote + one_of(random, {"", " && true", "; true", " numpy==1.26.4"}) +
              end};
  }
}

inline Input input_of(const Planted& one, Random& random) {
  switch (random.below(11)) {
    case 4:
    case 5:
    case 6:
      return pasted_of(one, random);
    case 0:
      return toml_lock_of(one, random);
    case 1:
      return bill_of(one, random);
    case 2:
      return spdx_of(one, random);
    case 3:
      return pipfile_of(one, random);
    default:
      return requirements_of(one, random);
  }
}

}  // namespace patchbench::spellings
