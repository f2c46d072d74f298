/** What servers over HTTP have in common: routes, limits, keys, errors and figures. */
@NullMarked
package io.djltp.internal.http;

import org.jspecify.annotations.NullMarked;
