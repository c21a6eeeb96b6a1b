#pragma once
#include <algorithm>
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
  switch (random.below(7)) {
    case 5: {
      const std::string form = one_of(random, {"5", "6"}),
                        wheel = "https://files.pythonhosted.org/packages/" + wheel_of(one, one.bad);
      return {.kind = "pixi.lock",
              .text = "version: " + form + end + "environments: {}" + end + "packages:" + end +
                      "- " + (form == "6" ? "pypi: " : "kind: pypi" + end + "  url: ") + wheel +
                      end +
                      one_of(random, {"", "  name: " + name + end + "  version: " + quote +
                                              one.bad + quote + end})};
    }
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

/// What a script sets, joins and expands before it installs. The right release is there, too: where
/// the planted one is lost, the answer would be all clear.
inline Input script_of(const Planted& one, Random& random) {
  const std::string name = name_of(one.name, random), pin = name + "==" + one.bad,
                    right = name + "==" + one.right, quote = one_of(random, {"\"", "'"}),
                    use = one_of(random, {"$P", "${P}", "\"$P\"", "${P[@]}", "\"${P[@]}\""}),
                    version = one_of(random, {"$V", "${V}", "\"$V\"", "\"${V}\""}),
                    other = one_of(random, {"torch==$T", "torch==${T}", "torch==${T:-2.4}",
                                            "torch==$(cat t)", "torch==`cat t`", "${T:+x}",
                                            "torch==${{ m.t }}", ">log", "2>&1", "> log", "-q"});
  const auto install = [&](const std::string& what) {
    return one_of(random, {"pip", "uv pip", "python3 -m pip", "!pip", "if pip"}) + " install " +
           what + "\n";
  };
  const std::string begin = one_of(random, {"#!/bin/sh\n", "FROM scratch\nRUN x\n",
                                            "Bootstrap: docker\nFrom: x:1\n%post\n"}) +
                            install(right);
  const auto script = [&](const std::string& text) {
    return Input{.kind = "script", .text = begin + text};
  };
  switch (random.below(12)) {
    case 0:
      return script(install(other + " " + pin + " six"));
    case 1:
      return script("P=" + pin + "\n" + install(use + " six"));
    case 2:
      return script("P=six\nP+=" + quote + " " + pin + quote + "\n" + install(use));
    case 3:
      return script("P=(" + pin + " six)\n" + install(use + " six"));
    case 4:
      return script("P=" + quote + "\n" + pin + "\n" + quote + "\n" + install(use + " six"));
    case 5:
      return script("V=" + one.right + "\nif x; then\n  V=" + one.bad + "\nfi\n" +
                    install(name + "==" + version));
    case 6:
      return script("V=" + one.bad + "\n[ x ] && V=" + one.right + "\n" +
                    install(name + "==" + version));
    case 7:
      return script("P=six\nfor P in " + pin + "; do " + install(use) + "done\n");
    case 8:
      return script("V=" + one.right + "\nf() {\n  " +
                    one_of(random, {"local", "declare", "typeset", "export"}) + " V=" + one.bad +
                    "\n  " + install(name + "==" + version) + "}\n");
    case 9:
      return script(one_of(random, {"P=`cat p`\n", "P=$(\n  cat p\n)\n", "P=`\n  cat p`\n"}) +
                    install(use + " six"));
    case 10:
      return script(one_of(random, {"easy_install ", "pixi add --pypi ", "rye add ",
                                    "$PIP install ", "poetry add ", "pipenv install "}) +
                    pin + "\n");
    default:
      return script("bash -c " + quote + "pip install " + pin +
                    one_of(random, {quote, "\n" + quote}) + "\n");
  }
}

/// What is copied from a terminal or an issue, with what is around it.
inline Input copied_of(const Planted& one, Random& random) {
  const std::string name = name_of(one.name, random), row = name + "   " + one.bad,
                    right = one.name + " " + one.right,
                    before = one_of(random, {"", "**Pip list**\n", "```\n", "(x) ~ pip list\n",
                                             "some words\n\n"});
  const auto quoted = [&](const std::string& text) {
    std::string out, mark = one_of(random, {"", "", "> ", ">"});
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      out += mark + text.substr(at, end + 1 - at);
      at = end + 1;
    }
    return one_of(random, {"", "<details>\n\n"}) + out + one_of(random, {"", "</details>\n"});
  };
  switch (random.below(7)) {
    case 0:
      return {.kind = "copied",
              .text = before + "------------ -----\n" + right + "\n" + row + "\n"};
    case 1:
      return {.kind = "copied",
              .text = before + "Package Version\n------- -------\n" + right + "\n\n" + row + "\n"};
    case 2:
      return {.kind = "copied", .text = "numpy 1.26.4 py311_0\n" + row + " pypi_0 pypi\n"};
    case 3:
      return {.kind = "copied",
              .text = "# $ conda create --name <env> --file <this file>\n" +
                      std::string("_libgcc_mutex=0.1=main\nnumpy=1.26.4=py_0\n") + name + "=" +
                      one.bad + one_of(random, {"", "=pypi_0"}) + "\n"};
    case 4:
      return {.kind = "copied",
              .text =
                  "  Name  Version  Build  Channel\n\xe2\x94\x80\xe2\x94\x80\n"
                  "  numpy  1.26.4  py_0  conda-forge\n  " +
                  row + "  pypi_0  pypi\n"};
    case 5:
      return {.kind = "copied",
              .text = quoted("[pip3] numpy==1.26.4\n[pip3] torch==2.6.0\n[pip3] " + name +
                             "==" + one.bad + "\n")};
    default:
      return {.kind = "copied",
              .text = quoted("- PyTorch version: 2.6.0\n- Platform: x\n- `" + name +
                             "` version: " + one.bad + "\n- numpy version: 1\n")};
  }
}

/// The tables of Pixi, Hatch, Poetry and others in a pyproject.toml, with the right release in
/// [project].
inline Input tables_of(const Planted& one, Random& random) {
  const std::string version = one_of(random, {"==", ""}) + one.bad,
                    space = one_of(random, {"", " "}), quote = one_of(random, {"\"", "'"}),
                    key =
                        random.below(2) == 0 ? one.name : quote + name_of(one.name, random) + quote,
                    pin = name_of(one.name, random) + "==" + version_of(one.bad, random),
                    list = "[\"numpy==1.26.4\"," + space + quote + pin + quote + "]\n",
                    head = "[project]\nname = \"x\"\ndependencies = [\"" + one.name +
                           "==" + one.right + "\"]\n";
  const std::string value =
      one_of(random, {quote + version + quote, "{version = \"" + version + "\"}",
                      "{ version =\"" + version + "\", extras = [\"a\"] }"});
  const std::string pixi =
      one_of(random, {"", "feature.a.", "target.linux-64.", "feature.a.target.linux-64.",
                      "feature.\"a b\"."}) +
      one_of(random, {"pypi-dependencies", "pypi-dependencies", "dependencies"});
  switch (random.below(6)) {
    case 0:
      return {.kind = "pixi",
              .text = head + "[tool.pixi." + pixi + "]\n" + key + " = " + value + "\n"};
    case 1:
      return {
          .kind = "pixi",
          .text = head + "[tool.pixi]\n" + pixi + "." + key + space + "=" + space + value + "\n"};
    case 2:
      return {.kind = "pixi",
              .text = "[workspace]\nchannels = [\"conda-forge\"]\n[" + pixi + "]\n" + key + " = " +
                      value + "\n"};
    case 3:
      return {.kind = "hatch",
              .text = head + "[tool.hatch.envs." + one_of(random, {"default", "\"a.b\"", "'x y'"}) +
                      "]\n" + one_of(random, {"", "features = [\"a\"]\n"}) +
                      one_of(random, {"dependencies", "extra-dependencies", "\"dependencies\""}) +
                      space + "=" + space + list};
    case 4:
      return {.kind = "hatch",
              .text = head +
                      one_of(random, {"[tool.hatch.envs.t.overrides]\nmatrix.v.dependencies = ",
                                      "[tool.hatch]\nenvs.t.dependencies = ",
                                      "[tool.hatch.envs]\nt.extra-dependencies = "}) +
                      list};
    default:
      return {.kind = "tables",
              .text = head +
                      one_of(random, {"[tool.rye]\ndev-dependencies = " + list,
                                      "[tool.flit.metadata]\nrequires = " + list,
                                      "[tool.pdm.dev-dependencies]\nt = " + list,
                                      "[dependency-groups]\nt = " + list,
                                      "[tool.poetry.dependencies]\n" + key + " = " + value + "\n",
                                      "[tool.poetry.group.t.dependencies]\n" + key + " = " + value +
                                          "\n"})};
  }
}

/// setup.cfg and setup.py.
inline Input setup_of(const Planted& one, Random& random) {
  const std::string pin = name_of(one.name, random) + "==" + version_of(one.bad, random),
                    key = one_of(random,
                                 {"install_requires", "install-requires", "Install_Requires"}),
                    sign = one_of(random, {" =", "=", " = ", ":"}),
                    end = one_of(random, {"\n", "\r\n"}), gap = one_of(random, {"    ", "\t", " "}),
                    right = one.name + "==" + one.right;
  Input input{.kind = "setup"};
  switch (random.below(5)) {
    case 0:
      input.text = "[metadata]" + end + "name = x" + end + "[options]" + end + key + sign + end +
                   gap + right + end + gap + "# why" + end + gap + pin + end;
      break;
    case 1:
      input.text = "[options]" + end + key + sign + right + "; " + pin + end;
      break;
    case 2:
      input.text = "[options]" + end + key + sign + one_of(random, {"", end + gap}) +
                   "file: more.txt" + end + "[options.extras_require]" + end + "a = " + right + end;
      input.included["more.txt"] = pin + "\n";
      break;
    case 3:
      input.text =
          "[options.extras_require]" + end + "a =" + end + gap + right + end + "b = " + pin + end;
      break;
    default:
      input.text = "from setuptools import setup" + end + "R = ['" + right + "']" + end +
                   "setup(name='x', install_requires=R, " +
                   one_of(random, {"extras_require={'a': ['" + pin + "']})",
                                   "tests_require=['" + pin + "'])"}) +
                   end;
  }
  return input;
}

inline Input input_of(const Planted& one, Random& random) {
  switch (random.below(17)) {
    case 4:
    case 5:
    case 6:
      return pasted_of(one, random);
    case 7:
    case 8:
      return script_of(one, random);
    case 9:
      return copied_of(one, random);
    case 10:
    case 11:
      return tables_of(one, random);
    case 12:
      return setup_of(one, random);
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
