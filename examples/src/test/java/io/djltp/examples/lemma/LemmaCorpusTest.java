package io.djltp.examples.lemma;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

public class LemmaCorpusTest {

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
        Assert.assertEquals(corpus.lexicon().lemma(corpus.classOf(1)), "Weise");
        Assert.assertEquals(corpus.lexicon().lemma(corpus.classOf(2)), "Weisen");
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
        Lexicon lexicon = corpus.lexicon();
        Assert.assertEquals(corpus.classes(), 4);
        Assert.assertEquals(lexicon.languages(), List.of(Language.PL, Language.DE, Language.EN));
        Assert.assertEquals(lexicon.size(Language.EN), 2);
        Assert.assertEquals(corpus.size(Language.EN), 2);
        Assert.assertEquals(corpus.size(Language.RU), 0);
        Assert.assertEquals(lexicon.label(1), "Hand [de]");
        Assert.assertEquals(lexicon.label(3), "Hand [en]");
        Assert.assertEquals(lexicon.language(3), Language.EN);
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
            String lemma = corpus.lexicon().lemma(corpus.classOf(i));
            String stem = lemma.substring(0, lemma.length() - 2);
            Assert.assertTrue(corpus.form(i).startsWith(stem));
            Assert.assertEquals(corpus.isLemma(i), i % 4 == 0);
        }
    }
}
