package io.djltp.examples.lemma;

import io.djltp.internal.Errors;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

/** A language with a dictionary on the class path. */
public enum Language {
    /** German, from {@code de.danielnaber:german-pos-dict}. */
    DE("de", "German", "org/languagetool/resource/de/german.dict"),
    /** English, from {@code org.languagetool:english-pos-dict}. */
    EN("en", "English", "org/languagetool/resource/en/english.dict"),
    /** Polish, from {@code org.carrot2:morfologik-polish}. */
    PL("pl", "Polish", "morfologik/stemming/polish/polish.dict"),
    /** Ukrainian, from {@code ua.net.nlp:morfologik-ukrainian-lt}. */
    UK("uk", "Ukrainian", "org/languagetool/resource/uk/ukrainian.dict"),
    /** Russian, from {@code org.languagetool:language-ru}. */
    RU("ru", "Russian", "org/languagetool/resource/ru/russian.dict");

    private final String code;
    private final String displayName;
    private final String resource;

    Language(String code, String displayName, String resource) {
        this.code = code;
        this.displayName = displayName;
        this.resource = resource;
    }

    /**
     * Returns the two-letter code, as in {@code "de"}.
     *
     * @return the code
     */
    public String code() {
        return code;
    }

    /**
     * Returns the English name, as in {@code "German"}.
     *
     * @return the name
     */
    public String displayName() {
        return displayName;
    }

    /**
     * Returns where the dictionary lies on the class path.
     *
     * @return the name of the resource
     */
    public String resource() {
        return resource;
    }

    /**
     * Reads a list of codes such as {@code "pl,uk,ru"}. Case and blanks do not matter, and a code
     * that is given twice counts once.
     *
     * @param codes the codes, separated by commas
     * @return the languages in the given order
     * @throws IllegalArgumentException if a code is not known
     */
    public static List<Language> parse(String codes) {
        List<Language> languages = new ArrayList<>();
        for (String code : codes.split(",", -1)) {
            Language language = ofCode(code.strip());
            if (!languages.contains(language)) {
                languages.add(language);
            }
        }
        return languages;
    }

    /**
     * Returns the language with a code.
     *
     * @param code the code, in any case
     * @return the language
     * @throws IllegalArgumentException if the code is not known
     */
    public static Language ofCode(String code) {
        String wanted = code.toLowerCase(Locale.ROOT);
        for (Language language : values()) {
            if (language.code.equals(wanted)) {
                return language;
            }
        }
        String known =
                Arrays.stream(values()).map(Language::code).collect(Collectors.joining(", "));
        throw Errors.argument("unknown language '%s': choose from %s", code, known);
    }
}
