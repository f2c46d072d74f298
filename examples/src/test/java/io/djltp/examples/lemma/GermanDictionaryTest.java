package io.djltp.examples.lemma;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.List;

public class GermanDictionaryTest {

    @Test(timeOut = 120_000)
    public void dictionaryHasItsClassesAndTheSplitKeepsItsPromises() throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
        Assert.assertEquals(corpus.classes(), 120_658);
        Assert.assertEquals(corpus.size(), 587_704);
        SplitPromises.check(HeldOutSplit.of(corpus, 4000, 42), 4000);
    }
}
