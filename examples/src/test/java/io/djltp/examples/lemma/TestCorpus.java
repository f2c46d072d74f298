package io.djltp.examples.lemma;

/** Makes corpora of invented words. */
final class TestCorpus {

    private TestCorpus() {}

    /** Returns verbs with the given number of forms each, the lemma among them. */
    static LemmaCorpus verbs(int lemmas, int forms) {
        LemmaCorpus.Builder builder = LemmaCorpus.builder();
        for (int i = 0; i < lemmas; i++) {
            String stem = stem(i);
            builder.add(Language.DE, stem + "en", stem + "en");
            for (int k = 1; k < forms; k++) {
                builder.add(Language.DE, stem + "form" + k, stem + "en");
            }
        }
        return builder.build();
    }

    /** Returns a corpus in which one form has two lemmas. */
    static LemmaCorpus ambiguous() {
        return LemmaCorpus.builder()
                .add(Language.DE, "Weisen", "Weise")
                .add(Language.DE, "Weisen", "weisen")
                .add(Language.DE, "Weise", "Weise")
                .add(Language.DE, "weisen", "weisen")
                .build();
    }

    private static String stem(int number) {
        StringBuilder stem = new StringBuilder("st");
        for (int rest = number + 26; rest > 0; rest /= 26) {
            stem.append((char) ('a' + rest % 26));
        }
        return stem.toString();
    }
}
