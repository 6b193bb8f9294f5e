//! The macro that turns one declaration of a setting into its field, default, flag and environment
//! variable, so that the four can't drift apart.

/// Declares a section of settings and the set of overrides that flags and environment can give.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $config:ident, $overrides:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr, $flag:literal, $env:literal;
            )*
        } sections {
            $(
                $(#[doc = $section_doc:literal])+
                $section:ident: $section_config:ident, $section_overrides:ident;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $config {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($(#[doc = $section_doc])+ pub $section: $section_config,)*
        }

        impl Default for $config {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($section: $section_config::default(),)*
                }
            }
        }

        #[doc = concat!("What flags and environment say about [`", stringify!($config), "`].")]
        #[derive(Clone, Debug, Default, clap::Args)]
        pub struct $overrides {
            $(
                $(#[doc = $doc])+
                #[arg(id = $flag, long = $flag, env = $env)]
                pub $field: Option<$type>,
            )*
            $(
                $(#[doc = $section_doc])+
                #[command(flatten)]
                pub $section: $section_overrides,
            )*
        }

        impl $overrides {
            /// Sets in `config` what is given here, and leaves the rest as it is.
            pub(super) fn apply(&self, config: &mut $config) {
                $(
                    if let Some(value) = &self.$field {
                        config.$field.clone_from(value);
                    }
                )*
                $(self.$section.apply(&mut config.$section);)*
            }
        }

        impl $config {
            /// Flag and default of every setting, for `--help`.
            #[must_use]
            pub fn flag_defaults() -> Vec<(&'static str, String)> {
                let config = Self::default();
                #[allow(unused_mut, reason = "only sections with sections extend it")]
                let mut all = vec![$(($flag, $crate::config::load::shown(&config.$field)),)*];
                $(all.extend($section_config::flag_defaults());)*
                all
            }
        }
    };
}

pub(crate) use settings;
