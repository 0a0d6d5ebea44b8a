//! The built-in configuration files, and the one reader of config files.
//!
//! Anything that takes a config file takes `builtin:NAME` in its place. Nothing here knows what a
//! config file means. The invariant: what [`read`] gives back is a whole file of valid UTF-8 and at
//! most [`MAX_BYTES`] long.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;

/// The text of the built-in file `name`, or `None` if there is none of that name.
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTINS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The names that [`builtin`] knows, in the order in which help lists them.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|(name, _)| *name)
}

const BUILTINS: [(&str, &str); 3] = [
    ("models", include_str!("../models.yml")),
    ("responses", include_str!("../responses.yml")),
    ("bench-responses", include_str!("../bench-responses.yml")),
];

/// The JSON Schema (draft 2020-12) of the files of a kind: `models` or `responses`.
pub fn schema(kind: &str) -> Option<&'static str> {
    SCHEMAS.iter().find(|(known, _)| *known == kind).map(|(_, text)| *text)
}

/// The kinds that [`schema`] knows.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    SCHEMAS.iter().map(|(kind, _)| *kind)
}

const SCHEMAS: [(&str, &str); 2] = [
    ("models", include_str!("../../docs/schema/models.json")),
    ("responses", include_str!("../../docs/schema/responses.json")),
];

/// The largest file that is read, in bytes: ten thousand long answers fit in easily.
pub const MAX_BYTES: u64 = 16 << 20;

/// A file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// As the user named it: a path or `builtin:NAME`.
    pub name: String,
    /// All of it.
    pub text: String,
}

/// Why a file could not be read.
#[derive(Debug)]
pub struct ReadError {
    name: String,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    NoSuchBuiltin(String),
    Io(io::Error),
    NamedPipe,
    TooLarge,
    NotUtf8 { line: usize },
    Utf16,
}

/// The built-in file that `builtin:NAME` names, or else the file at that path; relative paths start
/// at the working directory.
///
/// # Errors
/// If there is no such file, it cannot be read, is larger than [`MAX_BYTES`], or is not UTF-8; the
/// error names the file.
pub fn read(name: &str) -> Result<Text, ReadError> {
    let text = match name.strip_prefix("builtin:") {
        Some(known) => {
            builtin(known).map(str::to_owned).ok_or_else(|| Reason::NoSuchBuiltin(known.to_owned()))
        }
        None => read_file(name),
    };
    match text {
        Ok(text) => Ok(Text { name: name.to_owned(), text }),
        Err(reason) => Err(ReadError { name: name.to_owned(), reason }),
    }
}

fn read_file(path: &str) -> Result<String, Reason> {
    let mut bytes = Vec::new();
    // Opening one waits for a writer, perhaps forever. Those of a shell (`<(...)`, /dev/stdin) have
    // one.
    let is_pipe = |it: std::fs::Metadata| it.file_type().is_fifo();
    if !path.starts_with("/dev/") && std::fs::metadata(path).is_ok_and(is_pipe) {
        return Err(Reason::NamedPipe);
    }
    let file = File::open(path).map_err(Reason::Io)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Reason::Io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Reason::TooLarge);
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.into_bytes();
        if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
            return Reason::Utf16;
        }
        Reason::NotUtf8 { line: 1 + bytes[..valid].iter().filter(|&&byte| byte == b'\n').count() }
    })
}

impl std::error::Error for ReadError {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reason } = self;
        match reason {
            Reason::NoSuchBuiltin(known) => {
                let all: Vec<_> = names().map(|name| format!("builtin:{name}")).collect();
                write!(
                    f,
                    "{name}: there is no built-in file `{known}`; there are {}",
                    all.join(", ")
                )
            }
            Reason::Io(error) => {
                write!(f, "{name}: cannot be read: {error}")?;
                if error.kind() == io::ErrorKind::NotFound && builtin(name).is_some() {
                    write!(f, "; did you mean builtin:{name}?")?;
                }
                Ok(())
            }
            Reason::NamedPipe => {
                write!(f, "{name}: is a named pipe; name a file, or /dev/stdin and pipe into it")
            }
            Reason::TooLarge => {
                write!(f, "{name}: is larger than {} MiB, the most that is read", MAX_BYTES >> 20)
            }
            Reason::NotUtf8 { line } => {
                write!(f, "{name}:{line}: is not a text in UTF-8; save the file in that encoding")
            }
            Reason::Utf16 => {
                write!(f, "{name}: is in UTF-16; save the file as UTF-8")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_can_be_read_by_its_name() {
        for name in names() {
            let file = read(&format!("builtin:{name}")).unwrap();
            assert_eq!(Some(file.text.as_str()), builtin(name));
        }
    }

    #[test]
    fn a_named_pipe_that_nobody_writes_to_is_refused_and_not_waited_for() {
        let path = std::env::temp_dir().join(format!("llmsim-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = read(path.to_str().unwrap()).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("is a named pipe"), "{error}");
    }

    #[test]
    fn an_error_names_the_file_and_the_reason() {
        for (name, words) in [
            ("builtin:modles", "no built-in file `modles`; there are builtin:models"),
            ("no/such/file.yml", "no/such/file.yml: cannot be read: No such file"),
            ("models", "did you mean builtin:models?"),
            ("/", "/: cannot be read: Is a directory"),
        ] {
            let error = read(name).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        let directory =
            std::env::temp_dir().join(format!("llmsim-defaults-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for (bytes, words) in [
            (&b"a: 1\nb: \xC3\x28\n"[..], ":2: is not a text in UTF-8"),
            (&b"\xFF\xFEa\0"[..], "is in UTF-16"),
        ] {
            let path = directory.join("bad.yml");
            std::fs::write(&path, bytes).unwrap();
            let error = read(path.to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let path = directory.join("large.yml");
        std::fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = read(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("larger than 16 MiB"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
