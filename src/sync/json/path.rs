//! Paths to fields inside JSON values.

use std::fmt;
use std::str::FromStr;

/// The path to a field: dotted (`input.groupId`, `list.0.name`) or a JSON Pointer (`/input/groupId`, [RFC 6901]).
///
/// In the dotted form `\.` is a dot and `\\` a backslash inside a name; in a JSON Pointer `~1` is a slash and `~0` a tilde. A part
/// that is a number without leading zeros also indexes arrays, from 0.
///
/// [RFC 6901]: https://www.rfc-editor.org/rfc/rfc6901
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    parts: Vec<String>,
    text: String,
}

impl Path {
    /// The names on the way, from the outermost.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Reads a comma-separated list of paths; `\,` is a comma inside a name. Gives every problem of the list.
    pub fn list(text: &str) -> Result<Vec<Path>, Vec<String>> {
        let mut problems = Vec::new();
        let mut paths = Vec::new();
        for item in split_list(text) {
            match item.trim().parse() {
                Ok(path) => paths.push(path),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(paths) } else { Err(problems) }
    }
}

/// Splits at commas that have no backslash before them.
fn split_list(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let last = items.len() - 1;
        match c {
            ',' => items.push(String::new()),
            '\\' => match chars.next() {
                Some(',') => items[last].push(','),
                other => items[last].extend(std::iter::once('\\').chain(other)),
            },
            _ => items[last].push(c),
        }
    }
    items
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = match text.strip_prefix('/') {
            Some(pointer) => pointer.split('/').map(unescape_pointer).collect::<Result<_, _>>(),
            None => split_dotted(text),
        };
        parts.map(|parts| Path { parts, text: text.to_owned() }).map_err(|problem| format!("path {text:?}: {problem}"))
    }
}

fn unescape_pointer(part: &str) -> Result<String, String> {
    let mut pieces = part.split('~');
    let mut name = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (c, rest) = match piece.as_bytes().first() {
            Some(b'0') => ('~', &piece[1..]),
            Some(b'1') => ('/', &piece[1..]),
            _ => return Err("write ~0 for a tilde and ~1 for a slash in a JSON Pointer".to_owned()),
        };
        name.push(c);
        name.push_str(rest);
    }
    Ok(name)
}

fn split_dotted(text: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let last = parts.len() - 1;
        match c {
            '.' => parts.push(String::new()),
            '\\' => match chars.next() {
                Some(c @ ('.' | '\\')) => parts[last].push(c),
                _ => return Err("write \\. for a dot and \\\\ for a backslash in a name".to_owned()),
            },
            _ => parts[last].push(c),
        }
    }
    match parts.iter().any(String::is_empty) {
        true => {
            Err("a name is empty; if a field is really called so, write the path as a JSON Pointer (/a//b)".to_owned())
        }
        false => Ok(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<String> {
        text.parse::<Path>().expect("a path").parts
    }

    #[test]
    fn t10_every_name_is_reachable_dotted_or_by_pointer() {
        assert_eq!(parts("a.b.0.c"), ["a", "b", "0", "c"]);
        assert_eq!(parts(r"a\.b.c\\d"), ["a.b", r"c\d"]);
        assert_eq!(parts("a/b~c"), ["a/b~c"], "slash and tilde are plain in the dotted form");
        assert_eq!(parts("/a.b/c~1d/e~0f/~01"), ["a.b", "c/d", "e~f", "~1"]);
        assert_eq!(parts("/"), [""]);
        assert_eq!(parts("/a//b"), ["a", "", "b"]);
    }

    #[test]
    fn t10_misread_paths_are_refused() {
        for text in ["", ".", "a.", ".a", "a..b", r"a\b", "a\\", "/a~2", "/a~"] {
            let problem = text.parse::<Path>().expect_err(text);
            assert!(problem.contains(&format!("{text:?}")), "{problem}");
        }
    }

    #[test]
    fn lists_are_split_at_commas() {
        let paths = Path::list(r"a.b, /c/d,e\,f\\,g").expect("paths");
        assert_eq!(paths.iter().map(|path| path.parts.join("|")).collect::<Vec<_>>(), ["a|b", "c|d", r"e,f\", "g"]);
        assert_eq!(Path::list("a..b,c,,/~").expect_err("problems").len(), 3);
    }
}
