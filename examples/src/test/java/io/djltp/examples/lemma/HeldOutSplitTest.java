package io.djltp.examples.lemma;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

public class HeldOutSplitTest {

    @Test(timeOut = 60_000)
    public void heldOutFormsAreInflectedUnseenAndOfKnownLemmas() {
        assertKeepsPromises(HeldOutSplit.of(TestCorpus.verbs(500, 4), 300, 1), 300);
    }

    @Test(timeOut = 60_000)
    public void noMoreFormsAreTakenThanTheLemmasCanSpare() {
        // of the three forms of a lemma two are inflected, and one form has to stay
        assertKeepsPromises(HeldOutSplit.of(TestCorpus.verbs(100, 3), 1000, 1), 200);
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

    /** What fastText gets is what this library trains on and is judged by, and nothing else. */
    @Test(timeOut = 60_000)
    public void theFilesOfFastText() throws IOException {
        HeldOutSplit split = HeldOutSplit.of(TestCorpus.verbs(500, 4), 300, 1);
        List<String> expected = new ArrayList<>();
        for (int pair : split.trainingPairs()) {
            LemmaCorpus corpus = split.corpus();
            expected.add(
                    "__label__" + corpus.label(corpus.classOf(pair)) + " " + corpus.form(pair));
        }
        List<List<String>> files = write(split);
        List<String> lines = files.get(0);
        Assert.assertNotEquals(lines, expected, "in the order of the dictionary");
        Assert.assertEquals(lines.size(), expected.size());
        Assert.assertEquals(new HashSet<>(lines), new HashSet<>(expected));
        Set<String> learned = new HashSet<>();
        lines.forEach(line -> learned.add(line.substring(line.indexOf(' ') + 1)));
        for (String line : files.get(1)) {
            Assert.assertFalse(learned.contains(line.substring(line.indexOf(' ') + 1)), line);
        }
        files = write(HeldOutSplit.of(TestCorpus.ambiguous(), 5, 1));
        Assert.assertEquals(files.get(1), List.of("__label__Weise __label__weisen Weisen"));
    }

    /** A lemma with its endings gives all of its forms; a tenth of the lemmas is held out. */
    @Test(timeOut = 60_000)
    public void theEndingsOfTheFormsOfALemma() throws IOException {
        Assert.assertEquals(HeldOutSplit.ending("gehen", "geht"), "-en+t");
        Assert.assertEquals(HeldOutSplit.ending("Haus", "Haus"), "-+");
        LemmaCorpus corpus = TestCorpus.verbs(50, 4);
        Set<String> expected = new HashSet<>();
        for (int pair = 0; pair < corpus.size(); pair++) {
            expected.add(corpus.lemma(corpus.classOf(pair)) + " " + corpus.form(pair));
        }
        Path folder = TestFolder.create();
        HeldOutSplit.writeForms(corpus, folder);
        List<String> lines = new ArrayList<>(Files.readAllLines(folder.resolve("test.txt")));
        Assert.assertEquals(lines.size(), corpus.classes() / 10);
        lines.addAll(Files.readAllLines(folder.resolve("train.txt")));
        Assert.assertEquals(lines.size(), corpus.classes());
        Set<String> found = new HashSet<>();
        for (String line : lines) {
            String lemma = line.substring(line.lastIndexOf(' ') + 1);
            for (String label : line.substring(0, line.lastIndexOf(' ')).split(" ")) {
                String[] ending = label.substring("__label__-".length()).split("\\+", 2);
                String stem = lemma.substring(0, lemma.length() - ending[0].length());
                Assert.assertEquals(stem + ending[0], lemma);
                found.add(lemma + " " + stem + ending[1]);
            }
        }
        Assert.assertEquals(found, expected);
    }

    private static List<List<String>> write(HeldOutSplit split) throws IOException {
        Path folder = TestFolder.create();
        split.write(folder.resolve("split"));
        List<List<String>> files = new ArrayList<>();
        for (String file : List.of("train.txt", "test.txt")) {
            files.add(Files.readAllLines(folder.resolve("split").resolve(file)));
        }
        return files;
    }

    /** Checks what a split promises, word by word. */
    static void assertKeepsPromises(HeldOutSplit split, int size) {
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
                Assert.assertNotEquals(corpus.lemma(right), form);
                Assert.assertTrue(trainedClasses.get(right), form + " has an unknown lemma");
            }
            Assert.assertEquals(Arrays.stream(gold).distinct().count(), gold.length);
        }
        Assert.assertEquals(split.trainingSize(), corpus.size() - heldOutPairs);
        Assert.assertEquals(split.trainingPairs().length, split.trainingSize());
    }
}
