//! The built-in configuration files, and the one reader of config files.
//!
//! Anything that takes a config file takes `builtin:NAME` in its place.

/// The text of the built-in file `name`, or `None` if there is none of that name.
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTINS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The names that [`builtin`] knows, in the order in which help lists them.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|(name, _)| *name)
}

const BUILTINS: [(&str, &str); 0] = [];
