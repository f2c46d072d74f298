package io.djltp.zoo;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/** The forms of a list of English words: the irregular ones as listed, the others by rule. */
final class EnglishWords {

    private static final String VOWELS = "aeiou";

    private final Map<String, String> lemmas = new LinkedHashMap<>(); // by form

    private EnglishWords() {}

    static Map<String, String> read(Path file) throws IOException {
        EnglishWords words = new EnglishWords();
        String section = "";
        for (String line : Files.readAllLines(file)) {
            if (line.startsWith("[")) {
                section = line;
            } else if (!line.startsWith("#") && section.startsWith("[irregular")) {
                words.addIrregular(section, line.split(" "));
            }
        }
        for (String line : Files.readAllLines(file)) { // irregular ones go before
            if (line.startsWith("[")) {
                section = line;
            } else if (!line.startsWith("#") && !section.startsWith("[irregular")) {
                for (String word : line.split(" ")) {
                    words.addRegular(section, word);
                }
            }
        }
        return words.lemmas;
    }

    private void addIrregular(String section, String... forms) {
        String lemma = forms[0];
        for (String form : forms) {
            lemmas.putIfAbsent(form, lemma);
        }
        if (section.contains("verbs") && !"be".equals(lemma)) {
            lemmas.putIfAbsent(withS(lemma), lemma);
            lemmas.putIfAbsent(withEnding(lemma, "ing"), lemma);
        }
    }

    private void addRegular(String section, String lemma) {
        lemmas.putIfAbsent(lemma, lemma);
        String base = lemmas.get(lemma);
        if (section.contains("verbs")) {
            lemmas.putIfAbsent(withS(lemma), base);
            lemmas.putIfAbsent(withEnding(lemma, "ed"), base);
            lemmas.putIfAbsent(withEnding(lemma, "ing"), base);
        } else if (section.contains("nouns")) {
            lemmas.putIfAbsent(withS(lemma), base);
        } else {
            lemmas.putIfAbsent(withEnding(lemma, "er"), base);
            lemmas.putIfAbsent(withEnding(lemma, "est"), base);
        }
    }

    private static String withS(String word) {
        if (word.matches(".*[^aeiou]y")) {
            return word.substring(0, word.length() - 1) + "ies";
        }
        return word + (word.matches(".*(s|x|z|ch|sh|[^aeiou]o)") ? "es" : "s");
    }

    private static String withEnding(String word, String ending) {
        int last = word.length() - 1;
        boolean ing = ending.startsWith("i");
        if (word.endsWith("ie") && ing) {
            return word.substring(0, last - 1) + "y" + ending;
        }
        if (word.endsWith("e") && !(ing && word.endsWith("ee"))) {
            return word.substring(0, last) + ending;
        }
        if (word.matches(".*[^aeiou]y") && !ing) {
            return word.substring(0, last) + "i" + ending;
        }
        boolean doubled =
                word.matches("[^aeiou]*[aeiou][^aeiouwxy]")
                        || word.matches("(admit|begin|forget|regret|prefer|forbid).*");
        return word
                + (doubled && VOWELS.indexOf(ending.charAt(0)) >= 0 ? word.charAt(last) : "")
                + ending;
    }
}
