/** Contains {@code tp finetune}: the training of a language model on texts of one's own. */
@NullMarked
package io.djltp.examples.finetune;

import org.jspecify.annotations.NullMarked;
