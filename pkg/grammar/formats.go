package grammar

// formats are the expressions of the formats of strings that are supported. What they match is
// valid; of mail addresses and host names they leave out what is rarely seen.
var formats = map[string]string{
	"date":      `^` + dateText + `$`,
	"time":      `^` + timeText + `$`,
	"date-time": `^` + dateText + `[Tt]` + timeText + `$`,
	"duration":  `^P(?:[0-9]{1,9}W|(?:` + daysText + `)(?:T` + hoursText + `)?|T` + hoursText + `)$`,
	"uuid":      `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`,
	"ipv4":      `^(?:` + byteText + `\.){3}` + byteText + `$`,
	"ipv6":      `^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$|^(?:[0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}$|^::(?:[0-9a-fA-F]{1,4}:){0,6}[0-9a-fA-F]{1,4}$|^::$`,
	"email":     `^[A-Za-z0-9_+~-]{1,20}(?:\.[A-Za-z0-9_+~-]{1,20}){0,2}@` + hostText + `$`,
	"hostname":  `^` + hostText + `$`,
}

const (
	leapText = `(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)`
	dateText = `(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|` + leapText + `-02-29)`
	// No leap seconds: whether one is valid depends on the offset.
	timeText  = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])`
	daysText  = `[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D`
	hoursText = `(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)`
	byteText  = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	// Labels of at most 63 characters without two hyphens beside each other, in names of a few.
	labelText = `[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}`
	hostText  = labelText + `(?:\.` + labelText + `){0,3}`
)
