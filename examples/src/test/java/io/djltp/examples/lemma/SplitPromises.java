package io.djltp.examples.lemma;

import org.testng.Assert;

import java.util.Arrays;
import java.util.BitSet;
import java.util.HashSet;
import java.util.Set;

/** Checks what {@link HeldOutSplit} promises, word by word. */
final class SplitPromises {

    private SplitPromises() {}

    static void check(HeldOutSplit split, int size) {
        LemmaCorpus corpus = split.corpus();
        Assert.assertEquals(split.size(), size);
        BitSet trainedClasses = new BitSet();
        Set<String> trainedForms = new HashSet<>();
        for (int pair : split.trainingPairs()) {
            trainedClasses.set(corpus.classOf(pair));
            trainedForms.add(corpus.form(pair));
        }
        int heldOutPairs = 0;
        Set<String> forms = new HashSet<>();
        for (int i = 0; i < split.size(); i++) {
            String form = split.form(i);
            Assert.assertTrue(forms.add(form), form + " comes twice");
            Assert.assertFalse(trainedForms.contains(form), form + " is trained on");
            int[] gold = split.goldClasses(i);
            heldOutPairs += gold.length;
            for (int right : gold) {
                Assert.assertNotEquals(corpus.lexicon().lemma(right), form);
                Assert.assertTrue(trainedClasses.get(right), form + " has an unknown lemma");
            }
            Assert.assertEquals(Arrays.stream(gold).distinct().count(), gold.length);
        }
        Assert.assertEquals(split.trainingSize(), corpus.size() - heldOutPairs);
        Assert.assertEquals(split.trainingPairs().length, split.trainingSize());
    }
}
