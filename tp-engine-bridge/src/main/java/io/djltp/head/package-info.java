/** Contains the fused softmax head: logits, loss and update in chunks of the classes. */
@NullMarked
package io.djltp.head;

import org.jspecify.annotations.NullMarked;
