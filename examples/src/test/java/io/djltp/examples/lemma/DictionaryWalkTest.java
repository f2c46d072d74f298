package io.djltp.examples.lemma;

import io.djltp.examples.lemma.LemmaCorpus.DictionaryWalk;

import morfologik.stemming.Dictionary;
import morfologik.stemming.DictionaryLookup;
import morfologik.stemming.WordData;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

/** The walk gives the pairs that the library's own iterator gives, without those that repeat. */
public class DictionaryWalkTest {

    private static final int PAIRS = 5000;

    /** Polish has another kind of changes, and Russian another encoding. */
    @DataProvider
    public Object[][] languages() {
        return Arrays.stream(Language.values()).map(l -> new Object[] {l}).toArray(Object[][]::new);
    }

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
        Assert.assertEquals(firstPairs(dictionary), expected);
    }

    private static List<String> firstPairs(Dictionary dictionary) throws IOException {
        List<String> pairs = new ArrayList<>();
        DictionaryWalk.Visitor visitor =
                new DictionaryWalk.Visitor() {
                    private String form;

                    @Override
                    public void form(byte[] text, int length) {
                        form = new String(text, 0, length, StandardCharsets.UTF_8);
                    }

                    @Override
                    public void lemma(byte[] text, int length) {
                        if (pairs.size() == PAIRS) {
                            throw new Enough();
                        }
                        String lemma = new String(text, 0, length, StandardCharsets.UTF_8);
                        pairs.add(form + " " + lemma);
                    }
                };
        Assert.assertThrows(Enough.class, () -> new DictionaryWalk(dictionary, visitor).run());
        return pairs;
    }

    private static final class Enough extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }
}
