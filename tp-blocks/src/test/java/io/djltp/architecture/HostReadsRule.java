package io.djltp.architecture;

import static com.tngtech.archunit.base.DescribedPredicate.describe;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;

import ai.djl.ndarray.NDArray;

import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.domain.JavaMethodCall;

import io.djltp.internal.torch.HostReads;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.util.regex.Pattern;

/**
 * Nothing that runs in a training step reads a number from its device, or brings numbers there, but
 * by {@link HostReads}, which counts: {@code HostWaitTest} then says how often a step does.
 */
final class HostReadsRule {

    private static final Pattern READS =
            Pattern.compile(
                    "createBuffer|item(_\\w+)?"
                            + "|to(Array|Float\\w*|Double\\w*|Long\\w*|Int\\w*|Byte\\w*|Bool\\w*"
                            + "|Uint8\\w*)|get(Float|Double|Long|Int|Byte|Boolean|Uint8)");

    /** What is in these is read before a training, after it, or between its steps. */
    private static final String[] BETWEEN_STEPS = {
        "io.djltp.checkpoint..",
        "io.djltp.classes..",
        "io.djltp.exchange..",
        "io.djltp.llm..",
        "io.djltp.plan..",
        "io.djltp.report..",
        "io.djltp.search..",
        "io.djltp.zoo..",
    };

    /** So is what these read; of ids a table reads one number if they are wrong. */
    private static final Pattern CLASSES =
            Pattern.compile(
                    "HostReads|Checksum" // that of a drift check
                            + "|TopClasses|VocabParallelAccuracy|VocabParallelTopK" // evaluation
                            + "|FusedHead|ParallelDropout|RandomDraws" // state
                            + "|ShardedArray" // the way back into the model
                            + "|RowClassifier" // predictions of a model of Spark
                            + "|TableShard");

    private HostReadsRule() {}

    /** Checks the classes of the library. */
    static void check(JavaClasses library) {
        noClasses()
                .that()
                .resideOutsideOfPackages(BETWEEN_STEPS)
                .and(
                        describe(
                                "may run in a step",
                                each -> !CLASSES.matcher(each.getSimpleName()).matches()))
                .should()
                .callMethodWhere(describe("reads from a device", HostReadsRule::reads))
                .check(library);
        noClasses()
                .that()
                .resideInAPackage("io.djltp.internal..")
                .and()
                .doNotHaveFullyQualifiedName(HostReads.class.getName())
                .should()
                .callMethodWhere(describe("brings numbers to a device", HostReadsRule::uploads))
                .check(library);
    }

    private static boolean uploads(JavaMethodCall call) {
        return call.getTargetOwner().isEquivalentTo(torch.class) && "tensor".equals(call.getName())
                || call.getTargetOwner().isEquivalentTo(Tensor.class)
                        && "create".equals(call.getName());
    }

    private static boolean reads(JavaMethodCall call) {
        return (call.getTargetOwner().isAssignableTo(NDArray.class)
                        || call.getTargetOwner().isAssignableTo(Tensor.class))
                && READS.matcher(call.getName()).matches();
    }
}
