//! `--kafka PROPERTY=VALUE` and `--store PROPERTY=VALUE`, with secrets from the environment or from files.

use super::args::Problem;
use super::config::Property;

/// Reads every option of this name. Problems never show a value.
pub(super) fn read<'a>(
    option: &str,
    given: impl Iterator<Item = &'a str>,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Vec<Property> {
    let mut properties: Vec<Property> = Vec::new();
    for text in given {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
            let (what, fix) =
                (format!("a --{option} without name or value"), format!("write --{option} PROPERTY=VALUE"));
            problems.push(Problem::new(what, fix));
            continue;
        };
        let name = name.trim();
        if properties.iter().any(|property| property.name == name) {
            let what = format!("--{option} {name} is given twice");
            problems.push(Problem::new(what, "keep one"));
            continue;
        }
        match resolve(value, env) {
            Ok(value) => properties.push(Property { name: name.to_owned(), value }),
            Err(fix) => problems.push(Problem::new(format!("--{option} {name}"), fix)),
        }
    }
    properties
}

/// Puts in the file of `@FILE` (without its last line end), or the variables of `${VARIABLE}`.
fn resolve(value: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    if let Some(file) = value.strip_prefix('@') {
        let text = std::fs::read_to_string(file).map_err(|error| format!("file \"{file}\" cannot be read: {error}"))?;
        return Ok(text.trim_end_matches(['\n', '\r']).to_owned());
    }
    let mut pieces = value.split("${");
    let mut resolved = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (variable, rest) = piece.split_once('}').ok_or("a ${ has no } behind it")?;
        let text = env(variable).ok_or_else(|| format!("the environment has no variable {variable}: set it first"))?;
        resolved.push_str(&text);
        resolved.push_str(rest);
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_outside() -> std::io::Result<()> {
        let env = |name: &str| (name == "USER_X").then(|| "me".to_owned());
        assert_eq!(resolve("plain=$5", &env).as_deref(), Ok("plain=$5"));
        assert_eq!(resolve("a${USER_X}b${USER_X}", &env).as_deref(), Ok("amebme"));
        assert!(resolve("${NOBODY}", &env).is_err_and(|fix| fix.contains("NOBODY")));
        assert!(resolve("${USER_X", &env).is_err());
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "pass word\r\n")?;
        assert_eq!(resolve(&format!("@{}", file.path().display()), &env).as_deref(), Ok("pass word"));
        assert!(resolve("@/no/such/file", &env).is_err());
        Ok(())
    }

    #[test]
    fn debug_hides_values() {
        let property = Property { name: "sasl.password".to_owned(), value: "secret".to_owned() };
        assert_eq!(format!("{property:?}"), "sasl.password=(hidden)");
    }
}
