//! What the crate depends on: under which licences, and behind which features.

use std::process::Command;

/// Licences that ask for no more than their text and a name. Others need a decision, not a line here.
const ALLOWED: [&str; 10] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Feature of a broker, and the client crates that may be built only with it.
const CLIENTS: [(&str, &[&str]); 3] =
    [("kafka", &["rdkafka", "rdkafka-sys"]), ("s3", &["object_store", "tokio"]), ("azure", &["object_store", "tokio"])];

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether an SPDX expression leaves a choice that is allowed. `AND` binds before `OR`; `/` is an old way to write `OR`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim();
    for (operator, all) in [(" OR ", false), ("/", false), (" AND ", true)] {
        let parts = split(expression, operator);
        if parts.len() > 1 {
            return if all {
                parts.iter().all(|part| is_allowed(part))
            } else {
                parts.iter().any(|part| is_allowed(part))
            };
        }
    }
    match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => is_allowed(inner),
        None => ALLOWED.contains(&expression),
    }
}

/// Splits at an operator that is in no parentheses.
fn split<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= begin && expression[at..].starts_with(operator) => {
                parts.push(&expression[begin..at]);
                begin = at + operator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[begin..]);
    parts
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    for good in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "MIT OR GPL-3.0 AND Zlib"]
    {
        assert!(is_allowed(good), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-3.0", "Apache-2.0 WITH Other-exception"] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

#[test]
fn every_dependency_has_a_licence_of_the_list() {
    // What is built on any machine: the metadata also name crates that a feature of a feature would need and nobody asks for.
    let tree = cargo(&["tree", "--all-features", "--target", "all", "--prefix", "none", "--format", "{p}|{l}"]);
    let packages: std::collections::BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    assert!(packages.len() > 50, "{} packages are too few to be true", packages.len());
    let refused: Vec<&str> = packages
        .into_iter()
        .filter(|package| !is_allowed(package.split_once('|').map_or("", |(_, licence)| licence)))
        .collect();
    assert!(refused.is_empty(), "these need a decision:\n{}", refused.join("\n"));
}

#[test]
fn no_client_is_built_without_its_feature() {
    let tree = |features: &[&str]| {
        let arguments = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
        let tree = cargo(&[&arguments, features].concat());
        tree.lines().map(|line| line.split(' ').next().unwrap_or_default().to_string()).collect::<Vec<_>>()
    };
    let (default, none) = (tree(&[]), tree(&["--no-default-features"]));
    for (feature, crates) in CLIENTS {
        let with = tree(&["--no-default-features", "--features", feature]);
        for client in crates {
            assert!(with.iter().any(|name| name == client), "{client} is not in the feature {feature}");
            assert!(!default.iter().any(|name| name == client), "{client} is built by default");
            assert!(!none.iter().any(|name| name == client), "{client} is built without features");
        }
    }
}
