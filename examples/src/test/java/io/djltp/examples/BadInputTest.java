package io.djltp.examples;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/** Bad input ends in one clear line and status 2, before anything is computed or written. */
public class BadInputTest {

    private final Path folder = TestFolder.create();

    @BeforeClass
    public void createFolder() throws IOException {
        Files.createDirectory(folder.resolve("out"));
        Files.createFile(folder.resolve("file"));
        Files.write(folder.resolve("latin1.txt"), new byte[] {'n', (byte) 0xe9, 'e', '\n'});
        Files.writeString(folder.resolve("empty.txt"), "\n  \n");
    }

    /** What is typed, where {@code @} is the folder of the test, and what is answered. */
    @DataProvider
    public Object[][] inputs() {
        return new Object[][] {
            {"train --languages de,xx", "unknown language 'xx': choose from de, en, pl, uk, ru"},
            {"train --tp 0", "--tp must be greater than 0, not 0"},
            {"train --tp 4 --batch 3", "--batch 3 is smaller than the 4 ranks"},
            {"train --tp 4 --batch 3 --mode data", "--batch 3 is smaller"},
            {"train --mesh 4x2 --batch 3", "--batch 3 is smaller than the 4 groups"},
            {"train --mesh 2x3 --tp 4", "--mesh 2x3 has 6 ranks, and --tp is 4"},
            {"train --mesh 2x2 --mode tensor", "--mesh 2x2 and --mode tensor both say"},
            {"train --mesh 2x", "--mesh: A mesh is written as the sizes of its axes"},
            {"train --mesh 2x0", "--mesh: The axis 'tensor' of a mesh needs 1 rank"},
            {"train --dim 0", "--dim must be greater than 0, not 0"},
            {"train --batch -5", "--batch must be greater than 0, not -5"},
            {"train --epochs 0", "--epochs must be greater than 0, not 0"},
            {"train --steps 0", "--steps must be greater than 0, not 0"},
            {"train --minutes -0.5", "--minutes must be greater than 0, not -0.5"},
            {"train --lr 0", "--lr must be greater than 0, not 0"},
            {"train --lr NaN", "--lr must be greater than 0, not NaN"},
            {"train --lr Infinity", "--lr must be finite, not Infinity"},
            {
                "train --sample-share 1e-9",
                "--head sampled 1.00e-09: A sample share of 1.0E-9 of 120658 classes leaves no"
                        + " negatives: it is no class. The least share is 0.0000125"
            },
            {"train --json /proc/x", "--json /proc/x cannot be written"},
            {"train --json ''", "'--json': it is empty: name a file or a folder"},
            {"train --json /dev/null/x", "--json /dev/null/x cannot be written"},
            {"train --resume-from -1", "--resume-from must be greater than 0, not -1"},
            {"train --resume-from 7", "checkpoints has no checkpoint"},
            {"train --checkpoint-minutes 0", "--checkpoint-minutes must be greater"},
            {"train --resume --keep 0", "--keep must be greater than 0"},
            {"train --mode both", "Invalid value for option '--mode'"},
            {"train --optimizer adamax", "Invalid value for option '--optimizer'"},
            {"train --head half", "Invalid value for option '--head'"},
            {
                "train --backend gloo",
                "Invalid value for option '--backend': expected one of"
                        + " [auto, local, tcp, nccl] (case-insensitive) but was 'gloo'"
            },
            {
                "train --sample-share 0",
                "--sample-share must be greater than 0 and at most 1, not 0.0"
            },
            {"train --sample-share 0.5 --head fused", "--sample-share is for --head sampled"},
            {"train --precision float8", "Invalid value for option '--precision'"},
            {"train --precision tf32", "--precision: The precision tf32 "},
            {
                "train --precision float16",
                "--precision: The precision float16 is arithmetic of GPUs"
            },
            {"train --batch 1000000", "This run needs about"},
            {"train --tp 200000 --mode tensor", "leaves ranks without a class"},
            // a file in the way stops even a user who may write everywhere
            {"train --out @file/model", "cannot be written"},
            {"train --out @file/model", "write permission"},
            {"predict @none ging", "There is no trained model in"},
            {"lm --layers 0", "--layers must be greater than 0, not 0"},
            {"lm --steps -1", "--steps must be greater than 0, not -1"},
            {"lm --seed seven", "--seed"},
            {"lm --width 20 --heads 7", "use a multiple of 14"},
            {"lm --kv-heads 3", "--kv-heads 3 cannot be shared evenly by 8 query heads"},
            {"lm --tp 9", "--tp 9 leaves ranks without a head"},
            {"lm --mesh 1x9", "--mesh 1x9 leaves ranks without a head"},
            {"lm --mesh 2x2 --tp 3", "--mesh 2x2 has 4 ranks, and --tp is 3"},
            {"lm --mesh two", "--mesh"},
            {"lm --mesh 3x1 --batch 2", "--batch 2 is smaller than the 3 groups of ranks"},
            {"lm --tp 4 --sequence-parallel --context 3", "use --context 4 or more"},
            {"lm --context 5000000", "is longer than the held-out text"},
            {"lm --temperature -1", "--temperature must be 0 or more"},
            {"lm --json no/such/folder/file", "--json"},
            {"lm --report no/such/folder/run.html", "--report"},
            {"lm --checkpoint-steps 5", "need --out"},
            {"lm --resume", "need --out"},
            {"lm --resume-from 5", "need --out"},
            {"lm --out @x --checkpoint-steps 0", "--checkpoint-steps must be greater than 0"},
            {"embed", "There is no text"},
            {"embed a --tp 0", "--tp must be greater than 0, not 0"},
            {"embed a --tp 13", "more than the 12 query heads of the model"},
            {"embed a --model no-such-folder", "There is no folder no-such-folder"},
            {"embed a --backend pigeon", "expected one of"},
            {"embed a --json no/such/folder/file", "--json"},
            {"embed --file no-such-file", "cannot be read"},
            {"embed --file @latin1.txt", "is no text in UTF-8"},
            {"embed --file @empty.txt", "has no text"},
            {"doctor --megabytes 0", "from 1 to 1024, not 0"},
            {"doctor --tp 0", "not 0"},
            {"verify --tp 34", "from 1 to 33"},
            {"plan lemmatiser --mesh 2x", "--mesh: A mesh is written as the sizes"},
            {"plan lemmatiser --mesh 0x2", "--mesh: The axis 'data' of a mesh needs 1 rank"},
            {"plan lemmatiser --mesh 1x5 --classes 4", "Use at most 4 ranks"},
            {
                "plan lemmatiser --mesh 4x1 --batch 3",
                "cannot be shared by 4 ranks: give it 4 rows or more"
            },
            {"plan lemmatiser --mesh 2000x1", "at most 1024 ranks"},
            {"plan lemmatiser --batch 0", "must be 1 or more"},
            {"plan bert", "bert is no model and no folder. Choose a model: lemmatiser"},
            {"plan resnet --layers 3", "--layers says nothing of resnet: it is an option of lm"},
            {"plan minilm --optimizer sgd", "--optimizer says nothing of minilm"},
            {"plan minilm --tokens 300", "--tokens must be 256 or less"},
            {"plan minilm --mesh 1x13", "cannot be cut over 13 ranks"},
            {"plan lm --heads 3", "does not give each of the 3 heads the same"},
            {"plan lm --mesh 1x9", "cannot be cut over 9 ranks"},
            {
                "plan lm --mesh 1x4 --context 3 --sequence-parallel",
                "gives each of the 4 tensor-parallel ranks a token or more"
            },
            {"plan", "Choose a model: lemmatiser, minilm, lm or resnet"},
            {
                "bench",
                "Choose what to measure: head, layer, transformer, step, update or collective"
            },
            {"bench heads", "Invalid value for positional parameter"},
            {"bench head --shapes 64x128", "'64x128' is not such as 64x128x1000000"},
            {"bench head --shapes 64x128xmany", "'64x128xmany' is not such as"},
            {"bench head --shapes 64x0x10", "'64x0x10' is not such as"},
            {"bench layer --shapes 1x2x3x4", "'1x2x3x4' is not such as 256x1024x4096"},
            {"bench head --optimizer adamax", "Invalid value for option '--optimizer'"},
            {"bench head --head half", "Invalid value for option '--head'"},
            {"bench head --ranks 1,0", "--ranks must be greater than 0, not 0"},
            {"bench head --threads 2,0", "--threads must be greater"},
            {"bench head --repeats 0", "--repeats must be greater than 0, not 0"},
            {"bench head --warmup-seconds NaN", "--warmup-seconds must be 0 or more"},
            {"bench head --json /dev/null/x", "--json /dev/null/x cannot be written"},
            {"bench head --shapes 64x8x3 --ranks 4", "--ranks 4 is more than 64x8x3 can be cut"},
            {"bench step --shapes 3x64x9 --ranks 4", "--ranks 4 is more than 3x64x9 can be"},
            {
                "bench transformer --shapes 8x128x10x40 --heads 3",
                "The width 10 cannot be divided into --heads 3"
            },
            {
                "bench transformer --shapes 8x128x12x48 --heads 3 --ranks 4",
                "--ranks 4 is more than 8x128x12x48 can be cut into: use 3"
            },
            {"bench collective --bytes 6", "multiples of 4 from 4 to 1073741824, not 6"},
            {"bench collective --ranks 0", "--ranks must be greater than 0, not 0"},
            {
                "bench head --peers pytorch --python /bin/false",
                "--peers pytorch: /bin/false does not have PyTorch"
            },
            {"bench step --peers pytorch", "step has no PyTorch side"},
        };
    }

    @Test(dataProvider = "inputs", timeOut = 60_000)
    public void oneClearError(String line, String message) throws IOException {
        TpRun run = run(line);
        run.assertPrints(2, message);
        if (!line.equals("bench")) { // which shows what there is to choose from
            Assert.assertFalse(run.output().contains("Usage:"), run.output());
        }
        Assert.assertFalse(run.output().contains("Measuring"), run.output());
        try (var files = Files.list(folder.resolve("out"))) {
            Assert.assertEquals(files.count(), 0, "something was left behind");
        }
    }

    private TpRun run(String line) {
        String all =
                line.startsWith("train") && !line.contains("--out") ? line + " --out @out" : line;
        List<String> words =
                Arrays.stream(all.replace("@", folder + "/").split(" "))
                        .map(word -> word.equals("''") ? "" : word)
                        .toList();
        return TpRun.of(words.toArray(new String[0]));
    }

    @Test(timeOut = 60_000)
    public void devicesAreCheckedBeforeAnythingIsRead() {
        TpRun run = run("train --device gpu");
        run.assertPrints(2, "tp: --device gpu takes one GPU for each rank");
        Assert.assertFalse(run.output().contains("Reading"), run.output());
    }

    @Test(timeOut = 60_000)
    public void aWrongOptionIsOneLineAndWhereToLook() {
        TpRun run = TpRun.of("train", "--hepl");
        run.assertPrints(2, "--help");
        Assert.assertTrue(run.output().startsWith("tp: Unknown option"), run.output());
        Assert.assertTrue(run.output().trim().endsWith("./tp train --help"), run.output());
        Assert.assertTrue(run.output().lines().count() <= 4, run.output());
    }
}
