package io.djltp.examples.lemma;

import io.djltp.examples.lemma.LemmaCorpus.DictionaryWalk;
import io.djltp.testing.Refusals;

import morfologik.stemming.Dictionary;
import morfologik.stemming.DictionaryLookup;
import morfologik.stemming.WordData;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** The pairs of words and lemmas, what their classes mean, and the languages. */
public class LemmaCorpusTest {
    private static final int PAIRS = 5000;

    @Test
    public void repeatedPairsCountOnceAndAmbiguousFormsHaveSeveral() {
        LemmaCorpus corpus =
                LemmaCorpus.builder()
                        .add(Language.DE, "ging", "gehen")
                        .add(Language.DE, "ging", "gehen")
                        .add(Language.DE, "Weisen", "Weise")
                        .add(Language.DE, "Weisen", "Weisen")
                        .add(Language.DE, "Weisen", "Weise")
                        .build();
        Assert.assertEquals(corpus.size(), 3);
        Assert.assertEquals(corpus.classes(), 3);
        Assert.assertEquals(corpus.form(1), "Weisen");
        Assert.assertEquals(corpus.lemma(corpus.classOf(1)), "Weise");
        Assert.assertEquals(corpus.lemma(corpus.classOf(2)), "Weisen");
        Assert.assertTrue(corpus.sameForm(1, 2));
        Assert.assertFalse(corpus.sameForm(0, 1));
        Assert.assertFalse(corpus.isLemma(1));
        Assert.assertTrue(corpus.isLemma(2));
    }

    @Test
    public void classIsLemmaOfALanguage() {
        LemmaCorpus corpus =
                LemmaCorpus.builder()
                        .add(Language.PL, "nocy", "noc")
                        .add(Language.DE, "Hände", "Hand")
                        .add(Language.EN, "hands", "hand")
                        .add(Language.EN, "Hand", "Hand")
                        .build();
        Assert.assertEquals(corpus.classes(), 4);
        Assert.assertEquals(corpus.label(0), "noc [pl]");
        Assert.assertEquals(corpus.label(1), "Hand [de]");
        Assert.assertEquals(corpus.label(3), "Hand [en]");
    }

    @Test(expectedExceptions = IllegalArgumentException.class)
    public void pairsOfALanguageMustComeTogether() {
        LemmaCorpus.builder()
                .add(Language.DE, "ging", "gehen")
                .add(Language.EN, "went", "go")
                .add(Language.DE, "geht", "gehen");
    }

    @Test(timeOut = 60_000)
    public void manyWordsSurviveTheGrowthOfTheStore() {
        LemmaCorpus corpus = TestCorpus.verbs(20_000, 4);
        Assert.assertEquals(corpus.size(), 80_000);
        Assert.assertEquals(corpus.classes(), 20_000);
        for (int i = 0; i < corpus.size(); i++) {
            String lemma = corpus.lemma(corpus.classOf(i));
            String stem = lemma.substring(0, lemma.length() - 2);
            Assert.assertTrue(corpus.form(i).startsWith(stem));
            Assert.assertEquals(corpus.isLemma(i), i % 4 == 0);
        }
    }

    @DataProvider
    public Object[] languages() {
        return Language.values();
    }

    /**
     * The walk gives the pairs that the library's own iterator gives, without those that repeat.
     * Polish has another kind of changes, and Russian another encoding.
     */
    @Test(dataProvider = "languages", timeOut = 60_000)
    public void walksAsTheLibraryDoes(Language language) throws IOException {
        Dictionary dictionary =
                Dictionary.read(getClass().getClassLoader().getResource(language.resource()));
        List<String> expected = new ArrayList<>();
        Iterator<WordData> entries = new DictionaryLookup(dictionary).iterator();
        String last = null;
        while (expected.size() < PAIRS) {
            WordData entry = entries.next();
            String pair = entry.getWord() + " " + entry.getStem();
            if (!pair.equals(last)) { // other tags of the same pair
                expected.add(pair);
                last = pair;
            }
        }
        List<String> pairs = new ArrayList<>();
        DictionaryWalk walk =
                new DictionaryWalk(
                        dictionary,
                        (form, lemma) -> {
                            if (pairs.size() == PAIRS) {
                                throw new ArithmeticException("enough");
                            }
                            pairs.add(form + " " + lemma);
                        });
        Assert.assertThrows(ArithmeticException.class, walk::run);
        Assert.assertEquals(pairs, expected);
    }

    @Test(timeOut = 120_000)
    public void theGermanDictionary() throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
        Assert.assertEquals(corpus.classes(), 120_658);
        Assert.assertEquals(corpus.size(), 587_704);
        HeldOutSplit split = HeldOutSplit.of(corpus, 4000, 42);
        HeldOutSplitTest.assertKeepsPromises(split, 4000);
        // the split of a seed stays what it was: held-out words stay held out
        Assert.assertEquals(split.form(0) + " " + split.form(3999), "diensttuendes anpesenden");
    }

    @DataProvider
    public static Object[][] lists() {
        return new Object[][] {
            {"ru,de,pl", List.of(Language.RU, Language.DE, Language.PL)},
            {" PL, uk ,pl", List.of(Language.PL, Language.UK)},
            {"de,xx", "'xx'"},
            {"", "''"},
            {"de,", "''"},
            {"german", "'german'"}
        };
    }

    /** Order is kept, case and blanks do not matter, repeats count once; others are named. */
    @Test(dataProvider = "lists")
    public void listsOfLanguages(String codes, Object expected) {
        if (expected instanceof List) {
            Assert.assertEquals(Language.parse(codes), expected);
            return;
        }
        Refusals.throwsArgument(
                () -> Language.parse(codes), expected.toString(), "de, en, pl, uk, ru");
    }
}
