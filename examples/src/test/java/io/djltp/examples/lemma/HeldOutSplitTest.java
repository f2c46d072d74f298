package io.djltp.examples.lemma;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Set;
import java.util.TreeSet;

public class HeldOutSplitTest {

    @Test(timeOut = 60_000)
    public void heldOutFormsAreInflectedUnseenAndOfKnownLemmas() {
        SplitPromises.check(HeldOutSplit.of(TestCorpus.verbs(500, 4), 300, 1), 300);
    }

    @Test(timeOut = 60_000)
    public void noMoreFormsAreTakenThanTheLemmasCanSpare() {
        // of the three forms of a lemma two are inflected, and one form has to stay
        SplitPromises.check(HeldOutSplit.of(TestCorpus.verbs(100, 3), 1000, 1), 200);
    }

    @Test
    public void splitDependsOnSpellingAndSeedAlone() {
        Set<String> forms = forms(HeldOutSplit.of(verbs(0, 99), 20, 7));
        Assert.assertEquals(forms(HeldOutSplit.of(verbs(0, 99), 20, 7)), forms);
        Assert.assertEquals(forms(HeldOutSplit.of(verbs(99, 0), 20, 7)), forms);
        Assert.assertNotEquals(forms(HeldOutSplit.of(verbs(0, 99), 20, 8)), forms);
    }

    @Test
    public void everyLemmaOfAFormIsRight() {
        HeldOutSplit split = HeldOutSplit.of(TestCorpus.ambiguous(), 5, 1);
        Assert.assertEquals(split.size(), 1);
        Assert.assertEquals(split.form(0), "Weisen");
        Assert.assertEquals(split.goldClasses(0), new int[] {0, 1});
        Assert.assertEquals(split.trainingPairs(), new int[] {2, 3});
        Assert.assertEquals(split.rank(0, 7, 1, 0), 1);
        Assert.assertEquals(split.rank(0, 0), 0);
        Assert.assertEquals(split.rank(0, 7, 8), -1);
    }

    @Test
    public void formOfTwoLanguagesIsHeldOutInBoth() {
        LemmaCorpus corpus =
                LemmaCorpus.builder()
                        .add(Language.DE, "Tests", "Test")
                        .add(Language.DE, "Test", "Test")
                        .add(Language.EN, "Tests", "test")
                        .add(Language.EN, "test", "test")
                        .build();
        HeldOutSplit split = HeldOutSplit.of(corpus, 5, 1);
        Assert.assertEquals(split.size(), 1);
        Assert.assertEquals(split.goldClasses(0), new int[] {0, 1});
        Assert.assertEquals(split.trainingPairs(), new int[] {1, 3});
    }

    private static LemmaCorpus verbs(int from, int to) {
        LemmaCorpus.Builder builder = LemmaCorpus.builder();
        for (int i = from; i != to + Integer.signum(to - from); i += Integer.signum(to - from)) {
            for (String ending : new String[] {"en", "e", "st"}) {
                builder.add(Language.DE, "verb" + i + ending, "verb" + i + "en");
            }
        }
        return builder.build();
    }

    private static Set<String> forms(HeldOutSplit split) {
        Set<String> forms = new TreeSet<>();
        for (int i = 0; i < split.size(); i++) {
            forms.add(split.form(i));
        }
        Assert.assertEquals(forms.size(), split.size(), Arrays.toString(forms.toArray()));
        return forms;
    }
}
