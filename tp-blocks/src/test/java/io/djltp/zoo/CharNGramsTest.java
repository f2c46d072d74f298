package io.djltp.zoo;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.stream.Collectors;

public class CharNGramsTest {

    private static final int ROWS = 1 << 16;

    @Test
    public void wordHasItsBeginningsTwiceAndItsNGramsWithMarks() {
        CharNGrams nGrams = new CharNGrams(ROWS, 20);
        // abcd: 2 beginnings; ^abcd$ is 6 characters long: 2 n-grams of 5, then 3, 4 and 5
        int[] rows = nGrams.rowsOf("abcd");
        Assert.assertEquals(Arrays.stream(rows).filter(row -> row > 0).count(), 2 * 2 + 14);
        Assert.assertEquals(Arrays.copyOfRange(rows, 18, 20), new int[2]);
        Assert.assertEquals(rows[0], rows[1]);
        Assert.assertEquals(rows[2], rows[3]);
        Assert.assertNotEquals(rows[0], rows[2]);
        Assert.assertEquals(nGrams.rowsOf("abcx")[0], rows[0]);
        // ab is its own and only beginning
        Assert.assertEquals(
                Arrays.stream(nGrams.rowsOf("ab")).filter(row -> row > 0).count(), 2 + 6);
    }

    @Test
    public void relatedFormsShareRowsAndOthersDoNot() {
        CharNGrams nGrams = new CharNGrams(ROWS);
        Assert.assertTrue(shared(nGrams, "gesungen", "gesungenes") >= 20);
        Assert.assertEquals(shared(nGrams, "gesungen", "Kraut"), 0);
    }

    @Test
    public void letterCaseAndPlaceInTheWordMatter() {
        CharNGrams nGrams = new CharNGrams(ROWS);
        Assert.assertTrue(shared(nGrams, "Arm", "arm") < 4);
        Assert.assertNotEquals(nGrams.rowsOf("ab")[1], nGrams.rowsOf("ba")[1]);
    }

    @Test
    public void rowsAreTheSameInEveryRun() {
        // a saved model is of use only as long as these stay
        CharNGrams nGrams = new CharNGrams(ROWS, 8);
        Assert.assertEquals(
                nGrams.rowsOf("Öl"),
                new int[] {28808, 28808, 41155, 8885, 17099, 14387, 59089, 9525});
    }

    @DataProvider
    public Object[][] words() {
        return new Object[][] {
            {""}, {"a"}, {"Straße"}, {"їжа"}, {"x".repeat(500)}, {"\ud83d\ude00"}
        };
    }

    @Test(dataProvider = "words")
    public void rowsAreInRangeAndNoMoreThanTheLimit(String word) {
        CharNGrams nGrams = new CharNGrams(11, 20);
        int[] out = new int[24];
        Arrays.fill(out, -1);
        int count = nGrams.fill(word, out, 2);
        Assert.assertTrue(count >= 1 && count <= 20);
        Assert.assertEquals(Arrays.copyOf(out, 2), new int[] {-1, -1});
        Assert.assertEquals(Arrays.copyOfRange(out, 22, 24), new int[] {-1, -1});
        for (int i = 0; i < 20; i++) {
            int row = out[2 + i];
            Assert.assertTrue(i < count ? row >= 1 && row < 11 : row == 0, row + " at " + i);
        }
    }

    @Test
    public void theLimitForALengthLeavesNothingOut() {
        for (int length : new int[] {0, 1, 2, 3, 4, 17, 36}) {
            String text = "abcdefghijklmnopqrstuvwxyz0123456789".substring(0, length);
            int limit = CharNGrams.limitFor(length);
            Assert.assertEquals(new CharNGrams(ROWS, 500).fill(text, new int[500], 0), limit);
        }
        Assert.assertEquals(CharNGrams.limitFor(17), 96);
        Assert.assertEquals(CharNGrams.limitFor(36), 210);
    }

    /** Once: a corpus has millions of texts. */
    @Test
    public void aTextOfWhichLessThanHalfCountsIsLoggedOnce() {
        PrintStream before = System.err;
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
        try {
            CharNGrams.resetWarning();
            CharNGrams nGrams = new CharNGrams(ROWS, 12);
            nGrams.rowsOf("abcde"); // half of 24
            Assert.assertEquals(logged.size(), 0);
            nGrams.rowsOf("abcdef");
            nGrams.rowsOf("abcdefg");
        } finally {
            System.setErr(before);
        }
        String text = logged.toString(StandardCharsets.UTF_8);
        Refusals.assertContains(text, "6 characters has 30 n-grams, and only the first 12");
        Assert.assertEquals(text.split("limitFor", -1).length, 2, text);
    }

    private static int shared(CharNGrams nGrams, String a, String b) {
        Set<Integer> rows = rows(nGrams, a);
        rows.retainAll(rows(nGrams, b));
        return rows.size();
    }

    private static Set<Integer> rows(CharNGrams nGrams, String word) {
        return Arrays.stream(nGrams.rowsOf(word))
                .filter(row -> row > 0)
                .boxed()
                .collect(Collectors.toCollection(HashSet::new));
    }
}
