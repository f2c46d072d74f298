/** Contains the precision of products, and the allocator of the process. */
@NullMarked
package io.djltp.torch;

import org.jspecify.annotations.NullMarked;
